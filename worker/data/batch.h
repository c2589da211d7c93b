// One worker's slice of a global batch, as the reader hands it out.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_H_
#define THERMOCLINE_WORKER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// The key of a categorical column that is empty in Criteo's text form.
inline constexpr Key kEmptyCategoryKey = ~Key{0};

// Columns of the dense matrix are padded to a multiple of this, with zeros.
inline constexpr int kDenseColumnsMultiple = 8;

constexpr int PaddedDenseColumns(int num_dense) {
  return (num_dense + kDenseColumnsMultiple - 1) / kDenseColumnsMultiple * kDenseColumnsMultiple;
}

// The lookups of one feature: bag b is keys[offsets[b] .. offsets[b + 1]).
struct FeatureLookups {
  UninitializedVector<Key> keys;         // [offsets[size]]
  UninitializedVector<int32_t> offsets;  // [size + 1], offsets[0] == 0
};

// A plain value that is used again and again: its vectors keep their capacity.
struct Batch {
  Step step;                   // The global batch, counted over all passes.
  int size = 0;                // Samples here: this worker's slice. May be 0.
  int64_t global_samples = 0;  // Rows of the whole global batch, over all workers.
  uint32_t pass = 0;           // Over the data, from 0.
  bool begins_pass = false;    // It has the first row of the data.
  int64_t padding_ids = 0;     // That were left out of the bags.
  double progress = 0;         // Share of all the reading that is done with this batch, in (0, 1].

  int num_dense = 0;
  int dense_stride = 0;                  // PaddedDenseColumns(num_dense)
  UninitializedVector<float> dense;      // [size, dense_stride], columns from num_dense on are 0
  UninitializedVector<float> labels;     // [size], 0 or 1
  std::vector<FeatureLookups> features;  // In the job's order.

  absl::Span<const float> dense_row(int sample) const {  // [num_dense]
    return absl::MakeConstSpan(dense).subspan(static_cast<size_t>(sample) * dense_stride,
                                              num_dense);
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_H_
