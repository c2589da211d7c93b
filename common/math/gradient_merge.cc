#include "common/math/gradient_merge.h"

#include "common/base/hash.h"

namespace thermocline {
namespace {

// Pieces go by the hash's upper bits, since KeyNumbers goes by the lower ones.
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
  keys_.Begin(total_keys);
  counts_.resize(total_keys);
  gradients_.resize(total_keys * dim);
  for (const GradientBlock& block : blocks) AddBlock(block, dim, piece);
  result_.keys = keys_.keys();
  result_.counts = absl::MakeConstSpan(counts_.data(), keys_.size());
  result_.gradients = absl::MakeConstSpan(gradients_.data(), size_t{keys_.size()} * dim);
}

void GradientMerge::AddBlock(const GradientBlock& block, int dim, MergePiece piece) {
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const Key key = block.keys[i];
    const uint64_t hash = Mix64(key);
    if (!IsIn(hash, piece)) continue;
    const float* gradient = block.gradients.data() + i * dim;
    const size_t next = keys_.size();
    const size_t position = keys_.Add(key, hash);
    const bool is_first = position == next;
    counts_[position] = block.counts[i] + (is_first ? 0 : counts_[position]);
    MergeGradient(is_first, gradient, dim, gradients_.data() + position * dim);
  }
}

}  // namespace thermocline
