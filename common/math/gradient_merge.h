// Sums the gradients of one table over the workers, key by key, in rank order: on a server, and on
// the worker that updates a row in a server's place.
//
// The sum of a key starts from the gradient of the lowest rank that has the key; those of higher
// ranks are added one after the other. So its bits depend neither on threads, nor on how the pushes
// were cut into chunks, nor on the process that merges.
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

// Adds a rank's gradient to the sum of the ranks before. The first rank's gradient is copied, so
// that -0 stays -0.
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

// Says which keys to merge: those of piece `index`, in [0, of). The `of` pieces have about the same
// number of keys, and every key is in exactly one of them, with all its gradients; so threads may
// merge one piece each at the same time.
struct MergePiece {
  uint32_t index = 0;
  uint32_t of = 1;
};

// Merges blocks of any keys; it finds each key's place in the sum itself. (A caller that
// knows the places calls MergeGradient.) Not thread-safe; keeps its buffers for the next merge.
class GradientMerge {
 public:
  // Merges the keys of `piece` in `blocks`, which are in rank order; the blocks of one rank may be
  // in any order. It reads all keys, whatever the piece. The blocks may change once it returns.
  void Run(absl::Span<const GradientBlock> blocks, int dim, MergePiece piece = {});

  // The keys in the order in which they first came, with their counts and gradients added up. Valid
  // until the next Run().
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
