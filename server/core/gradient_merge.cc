#include "server/core/gradient_merge.h"

#include <cstring>

#include "common/check.h"
#include "common/hash.h"

namespace thermocline {
namespace {

void AddTo(float* __restrict sum, const float* __restrict gradient, int dim) {
  for (int i = 0; i < dim; ++i) sum[i] += gradient[i];
}

// By the hash's upper bits; the index goes by the lower ones.
bool IsIn(uint64_t hash, MergePiece piece) {
  return ((hash >> 32) * piece.of) >> 32 == piece.index;
}

size_t CountKeys(absl::Span<const GradientBlock> blocks, MergePiece piece) {
  size_t keys = 0;
  for (const GradientBlock& block : blocks) {
    if (piece.of == 1) {
      keys += block.keys.size();
      continue;
    }
    for (const Key key : block.keys) keys += IsIn(Mix64(key), piece) ? 1 : 0;
  }
  return keys;
}

}  // namespace

void GradientMerge::Run(absl::Span<const GradientBlock> blocks, int dim, MergePiece piece) {
  const size_t total_keys = CountKeys(blocks, piece);
  CHECK_LT(total_keys, size_t{1} << 31);
  size_t index_size = 16;
  while (index_size < 2 * total_keys) index_size *= 2;
  index_.assign(index_size, 0);
  index_mask_ = index_size - 1;
  keys_.resize(total_keys);
  counts_.resize(total_keys);
  gradients_.resize(total_keys * dim);
  num_keys_ = 0;
  for (const GradientBlock& block : blocks) AddBlock(block, dim, piece);
  result_.keys = absl::MakeConstSpan(keys_.data(), num_keys_);
  result_.counts = absl::MakeConstSpan(counts_.data(), num_keys_);
  result_.gradients = absl::MakeConstSpan(gradients_.data(), num_keys_ * dim);
}

void GradientMerge::AddBlock(const GradientBlock& block, int dim, MergePiece piece) {
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const Key key = block.keys[i];
    const uint64_t hash = Mix64(key);
    if (!IsIn(hash, piece)) continue;
    const float* gradient = block.gradients.data() + i * dim;
    uint64_t at = hash & index_mask_;
    while (index_[at] != 0 && keys_[index_[at] - 1] != key) at = (at + 1) & index_mask_;
    if (index_[at] != 0) {
      const size_t position = index_[at] - 1;
      counts_[position] += block.counts[i];
      AddTo(gradients_.data() + position * dim, gradient, dim);
      continue;
    }
    keys_[num_keys_] = key;
    counts_[num_keys_] = block.counts[i];
    std::memcpy(gradients_.data() + num_keys_ * dim, gradient, dim * sizeof(float));
    index_[at] = static_cast<uint32_t>(++num_keys_);
  }
}

}  // namespace thermocline
