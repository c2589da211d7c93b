#include "server/core/gradient_merge.h"

#include <cstring>

#include "common/check.h"
#include "common/hash.h"

namespace thermocline {
namespace {

void AddTo(float* __restrict sum, const float* __restrict gradient, int dim) {
  for (int i = 0; i < dim; ++i) sum[i] += gradient[i];
}

}  // namespace

void GradientMerge::Run(absl::Span<const GradientBlock> blocks, int dim) {
  size_t total_keys = 0;
  for (const GradientBlock& block : blocks) total_keys += block.keys.size();
  CHECK_LT(total_keys, size_t{1} << 31);
  size_t index_size = 16;
  while (index_size < 2 * total_keys) index_size *= 2;
  index_.assign(index_size, 0);
  index_mask_ = index_size - 1;
  keys_.resize(total_keys);
  counts_.resize(total_keys);
  gradients_.resize(total_keys * dim);
  num_keys_ = 0;
  for (const GradientBlock& block : blocks) AddBlock(block, dim);
  result_.keys = absl::MakeConstSpan(keys_.data(), num_keys_);
  result_.counts = absl::MakeConstSpan(counts_.data(), num_keys_);
  result_.gradients = absl::MakeConstSpan(gradients_.data(), num_keys_ * dim);
}

void GradientMerge::AddBlock(const GradientBlock& block, int dim) {
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const Key key = block.keys[i];
    const float* gradient = block.gradients.data() + i * dim;
    uint64_t at = Mix64(key) & index_mask_;
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
