// What the operations of a device (device.h) are given: views of its memory.
#ifndef THERMOCLINE_KERNELS_OPERANDS_H_
#define THERMOCLINE_KERNELS_OPERANDS_H_

#include <cstdint>

#include "common/math/sparse_optimizer.h"
#include "kernels/matrix.h"

namespace thermocline {

enum class PoolingMode { kSum, kMean };

// Lookups in one chunk of a canonical sum.
inline constexpr int kSegmentChunk = 256;

// One feature's lookups and the rows they read.
// REQUIRES: offsets[0] == 0, nondecreasing; 0 <= row_indices[j] < rows.rows
struct PoolInput {
  PoolingMode mode = PoolingMode::kSum;
  Matrix rows;                            // [num_rows, dim] float32
  DeviceSpan<const int32_t> row_indices;  // [lookups]
  DeviceSpan<const int32_t> offsets;      // [batch + 1]; empty: every bag is one lookup
};

// One table's lookups, grouped by unique key.
struct SegmentGroup {
  DeviceSpan<const int32_t> lookups;  // [lookups] rows of the gradients
  DeviceSpan<const int32_t> offsets;  // [segments + 1]
  Matrix sums;                        // [segments, dim] float32
};

// One table group's summed gradients and the rows they change.
struct RowUpdateGroup {
  OptimizerConfig optimizer;
  UpdateScalars scalars;
  Matrix gradients;                   // [n, dim] float32
  DeviceSpan<const int32_t> targets;  // [n] distinct rows of `rows`; one beyond is left alone
  Matrix rows;                        // [num_rows, dim + StateFloats(optimizer, dim)] float32
};

// Some rows of a matrix, and the same rows one after the other.
struct RowCopy {
  Matrix scattered;                // [num_rows, cols or more] float32
  DeviceSpan<const int32_t> rows;  // [n] of `scattered`; distinct where it is written
  Matrix packed;                   // [n, cols] float32
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_OPERANDS_H_
