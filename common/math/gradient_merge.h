// Sums the gradients of one table over the workers, key by key, in rank order: on a server, and on
// the worker that updates a row in a server's place.
//
// The sum of a key starts from the gradient of the lowest rank that has the key; the others are
// added one after the other. So its bits depend neither on threads nor on how the pushes were cut
// into chunks, nor on who merges.
#ifndef THERMOCLINE_COMMON_MATH_GRADIENT_MERGE_H_
#define THERMOCLINE_COMMON_MATH_GRADIENT_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "common/math/key_numbers.h"

namespace thermocline {

// Adds a rank's gradient to the sum of the ranks before; the first is copied, so that -0 stays -0.
//   gradient, sum: [dim]
inline void MergeGradient(bool is_first, const float* gradient, int dim, float* sum) {
  if (is_first) {
    std::memcpy(sum, gradient, dim * sizeof(float));
    return;
  }
  float* __restrict to = sum;
  const float* __restrict from = gradient;
  for (int i = 0; i < dim; ++i) to[i] += from[i];
}

// Some gradients of one table, from one worker. The keys of one worker are distinct.
struct GradientBlock {
  absl::Span<const Key> keys;         // [n]
  absl::Span<const uint32_t> counts;  // [n]
  absl::Span<const float> gradients;  // [n, dim]
};

// One of `of` pieces of about the same number of keys, which threads may merge beside each other:
// every key is in one of them, with all its gradients.
struct MergePiece {
  uint32_t index = 0;
  uint32_t of = 1;
};

// Where a key's place in the sum is not known. Not thread-safe; keeps its buffers for the next
// merge.
class GradientMerge {
 public:
  // Merges `blocks`, which are in rank order; the blocks of one rank may be in any order. The
  // result is valid until the next call. Reads all keys, whatever the piece.
  void Run(absl::Span<const GradientBlock> blocks, int dim, MergePiece piece = {});

  // Keys in the order in which they were first seen, with their counts and gradients added up.
  const GradientBlock& result() const { return result_; }

 private:
  void AddBlock(const GradientBlock& block, int dim, MergePiece piece);

  KeyNumbers keys_;
  UninitializedVector<uint32_t> counts_;
  UninitializedVector<float> gradients_;  // [keys, dim]
  GradientBlock result_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_GRADIENT_MERGE_H_
