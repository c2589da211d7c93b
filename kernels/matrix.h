// Device memory, views of it, and the operands of a device's operations (device.h). Views own
// nothing; on the CPU device they point to host memory.
#ifndef THERMOCLINE_KERNELS_MATRIX_H_
#define THERMOCLINE_KERNELS_MATRIX_H_

#include <cstdint>
#include <vector>

#include "common/math/sparse_optimizer.h"

namespace thermocline {

enum class DataType : uint8_t { kFloat32 };

// Leading dimensions of activations are multiples of this many elements; the padding holds zeros.
inline constexpr int kLeadingDimensionAlignment = 8;

constexpr int32_t PaddedColumns(int32_t columns) {
  return (columns + kLeadingDimensionAlignment - 1) / kLeadingDimensionAlignment *
         kLeadingDimensionAlignment;
}

// Device memory, zero at first. It may be destroyed on any thread; a GPU's memory is then freed by
// the thread that calls the device's operations, before it allocates more (stream_device.h).
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  float* floats() { return static_cast<float*>(data()); }
};

// Element (r, c) is at data[r * ld + c].
struct Matrix {
  void* data = nullptr;
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t ld = 0;  // In elements. REQUIRES: ld >= cols
  DataType dtype = DataType::kFloat32;

  float* floats() const { return static_cast<float*>(data); }
  float* row(int64_t r) const { return floats() + r * ld; }
};

inline bool HasShape(const Matrix& matrix, int64_t rows, int64_t columns) {
  return matrix.rows == rows && matrix.cols == columns;
}
inline bool HaveSameShape(const Matrix& a, const Matrix& b) { return HasShape(a, b.rows, b.cols); }

inline Matrix FloatMatrix(float* data, int32_t rows, int32_t cols, int64_t ld) {
  return Matrix{data, rows, cols, ld, DataType::kFloat32};
}
inline Matrix FloatMatrix(float* data, int32_t rows, int32_t cols) {
  return FloatMatrix(data, rows, cols, cols);
}

// `data` + `first`; null where `data` is, as of a buffer that a device has no memory for.
template <typename T>
T* PartOf(T* data, int64_t first) {
  return data == nullptr ? nullptr : data + first;
}

// Columns first .. first + width - 1.
inline Matrix ColumnsOf(const Matrix& matrix, int32_t first, int32_t width) {
  return FloatMatrix(PartOf(matrix.floats(), first), matrix.rows, width, matrix.ld);
}

template <typename T>
struct DeviceSpan {
  T* data = nullptr;
  int64_t size = 0;

  bool empty() const { return size == 0; }
  T& operator[](int64_t i) const { return data[i]; }
  // Elements first .. first + count - 1.
  DeviceSpan Part(int64_t first, int64_t count) const { return {PartOf(data, first), count}; }
  DeviceSpan<const T> AsConst() const { return {data, size}; }
};

enum class PoolingMode { kSum, kMean };

// Lookups in one chunk of a canonical sum.
inline constexpr int kSegmentChunk = 256;
// Samples in one chunk of the sum of a parameter's gradient (layer_operations.h).
inline constexpr int kSampleChunk = 64;

// One feature's lookups and the rows they read.
// REQUIRES: offsets[0] == 0, nondecreasing; 0 <= row_indices[j] < rows.rows
struct PoolInput {
  PoolingMode mode = PoolingMode::kSum;
  Matrix rows;                            // [num_rows, dim] float32
  DeviceSpan<const int32_t> row_indices;  // [lookups]
  DeviceSpan<const int32_t> offsets;      // [batch + 1]; empty: every bag is one lookup
  // Each row is multiplied with its weight; empty: with 1. REQUIRES: kSum, and offsets
  DeviceSpan<const float> weights;  // [lookups]
};

inline bool HasValidWeights(const PoolInput& input) {
  return input.weights.empty() || (input.weights.size == input.row_indices.size &&
                                   !input.offsets.empty() && input.mode == PoolingMode::kSum);
}

// One table's lookups, grouped by unique key.
struct SegmentGroup {
  DeviceSpan<const int32_t> lookups;  // [lookups] rows of the gradients
  DeviceSpan<const int32_t> offsets;  // [segments + 1]
  Matrix sums;                        // [segments, dim] float32
  DeviceSpan<const float> weights;    // [lookups] they multiply the gradients; empty: 1
};

// One table group's summed gradients and the rows they change: those columns of them that one
// optimizer updates. Rows with first-order weights have two (AppendUpdates).
struct RowUpdateGroup {
  UpdateScalars scalars;
  uint16_t weight_column = 0;  // The weights that are updated begin in this column of `rows`.
  uint16_t state_column = 0;   // Where their state begins.
  Matrix gradients;            // [n, weights] float32
  DeviceSpan<const int32_t> targets;  // [n] distinct rows of `rows`; those beyond are skipped
  Matrix rows;                        // [num_rows, weights and state] float32
};

inline bool IsValid(const RowUpdateGroup& group) {
  const int32_t weights = group.gradients.cols;
  return group.targets.size == group.gradients.rows && !group.scalars.has_cow_clip() &&
         group.weight_column + weights <= group.state_column &&
         group.state_column + StateFloats(group.scalars.kind, weights) <= group.rows.cols;
}

// Appends the updates of whole rows. REQUIRES: no cow_clip, since devices don't count lookups.
//   gradients: [n, dim]; rows: [num_rows, dim + StateFloats(optimizer, dim)]
inline void AppendUpdates(const RowScalars& scalars, Matrix gradients,
                          DeviceSpan<const int32_t> targets, Matrix rows,
                          std::vector<RowUpdateGroup>* updates) {
  const int32_t dim = gradients.cols;
  const int32_t vector_dim = scalars.has_first_order ? dim - 1 : dim;
  const int32_t state_end = dim + StateFloats(scalars.vector.kind, vector_dim);
  const auto append = [&](const UpdateScalars& of_part, int32_t first, int32_t n, int32_t state) {
    updates->push_back({of_part, static_cast<uint16_t>(first), static_cast<uint16_t>(state),
                        ColumnsOf(gradients, first, n), targets, rows});
  };
  if (vector_dim > 0) append(scalars.vector, 0, vector_dim, dim);
  if (scalars.has_first_order) append(scalars.first_order, vector_dim, 1, state_end);
}

// Some rows of a matrix, and the same rows one after the other.
struct RowCopy {
  Matrix scattered;                // [num_rows, cols or more] float32
  DeviceSpan<const int32_t> rows;  // [n] rows of `scattered`; distinct for ScatterRows
  Matrix packed;                   // [n, cols] float32
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_MATRIX_H_
