// Loops over the rows and columns of matrices on a thread pool, and the sums in them: what
// cpu_layers.cc and cpu_steps.cc are made of.
#ifndef THERMOCLINE_KERNELS_CPU_ROW_LOOPS_H_
#define THERMOCLINE_KERNELS_CPU_ROW_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/check.h"
#include "common/base/thread_pool.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/layer_arithmetic.h"
#include "kernels/layer_operations.h"
#include "kernels/matrix.h"

// An output may be one of the inputs, element by element: no iteration reads what another wrote.
#ifdef __clang__
#define INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace thermocline {

inline constexpr int64_t kCellFloats = 16384;  // Floats of one cell of the grid.

// Calls body(begin, end) for cells of rows.
template <typename Body>
void ForCells(ThreadPool* pool, int64_t rows, int64_t columns, Body body) {
  const int64_t cell_rows = std::max<int64_t>(kCellFloats / std::max<int64_t>(columns, 1), 1);
  pool->ParallelFor((rows + cell_rows - 1) / cell_rows, [&](int64_t cell, int) {
    body(cell * cell_rows, std::min((cell + 1) * cell_rows, rows));
  });
}

template <typename Body>
void ForRows(ThreadPool* pool, Matrix shape, Body body) {
  ForCells(pool, shape.rows, shape.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

// Calls body(row, n) so that each element is one of the n that begin with a row: row by row, or
// many rows at once where all matrices are without gaps. REQUIRES: they have one shape.
template <typename Body>
void ForElements(ThreadPool* pool, std::initializer_list<Matrix> matrices, Body body) {
  const Matrix shape = *matrices.begin();
  bool has_gaps = false;
  for (const Matrix& matrix : matrices) {
    CHECK(HaveSameShape(matrix, shape));
    has_gaps = has_gaps || matrix.ld != matrix.cols;
  }
  ForCells(pool, shape.rows, shape.cols, [&](int64_t begin, int64_t end) {
    if (!has_gaps) return body(begin, (end - begin) * shape.cols);
    for (int64_t r = begin; r < end; ++r) body(r, shape.cols);
  });
}

// Sets keep[c] to what DropoutKeeps returns for column first + c, for c in [0, columns) and up to
// the next multiple of kDropoutGroup. REQUIRES: columns <= kMaskColumns
inline constexpr int32_t kMaskColumns = 256;
inline void FillMask(uint64_t row_key, int32_t first, int32_t columns, uint32_t threshold,
                     uint32_t* keep) {
  constexpr int kHalf = kDropoutGroup / 2;
  const int32_t words = (columns + kDropoutGroup - 1) / kDropoutGroup * kHalf;
  uint32_t bits[kMaskColumns / 2];
  for (int32_t w = 0; w < words; ++w) bits[w] = DropoutBits(row_key, first / 2 + w);
  for (int32_t w = 0; w < words; w += kHalf) {
    for (int32_t i = 0; i < kHalf; ++i) {
      keep[2 * w + i] = DropoutKeeps(bits[w + i] & 0xffff, threshold);
      keep[2 * w + kHalf + i] = DropoutKeeps(bits[w + i] >> 16, threshold);
    }
  }
}

// row_key: what DropoutRowKey returns for the row
inline void DropoutOfRow(const DropoutMask& mask, uint64_t row_key, int32_t columns, const float* x,
                         float* y) {
  uint32_t keep[kMaskColumns];
  for (int32_t first = 0; first < columns; first += kMaskColumns) {
    const int32_t n = std::min(kMaskColumns, columns - first);
    FillMask(row_key, first, n, mask.threshold, keep);
    const float* const from = x + first;
    float* const to = y + first;
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < n; ++c) to[c] = DropoutOf(from[c], mask.scale, keep[c]);
  }
}

// The sum of term(i) for i in [0, n), in 16 lanes.
template <typename Term>
float SumOfLanes(int64_t n, Term term) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -0.0f;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  return TreeSum(lanes);
}

// Calls body(first, n) for blocks of kLanes of `columns`; n is a constant of the compiler's in all
// but the last.
template <typename Body>
void ForBlocks(int32_t columns, Body body) {
  int32_t first = 0;
  for (; first + kLanes <= columns; first += kLanes) {
    body(first, std::integral_constant<int32_t, kLanes>());
  }
  if (first < columns) body(first, columns - first);
}

// y = softmax(x). y may be x.
inline void Softmax(const float* x, int64_t n, float* y) {
  if (n == 0) return;
  float most = x[0];
  for (int64_t i = 1; i < n; ++i) most = GreaterOf(most, x[i]);
  INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < n; ++i) y[i] = ExpOfNonPositive(x[i] - most);
  const float inverse = 1 / SumOfLanes(n, [y](int64_t i) { return y[i]; });
  for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
}

// x_gradient may be y or y_gradient.
inline void SoftmaxGradients(const float* y, const float* y_gradient, int64_t n,
                             float* x_gradient) {
  const float dot = LaneDot(y, y_gradient, n);
  INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < n; ++i) x_gradient[i] = SoftmaxGradient(y[i], y_gradient[i], dot);
}

// Sums over samples, the gradients of a parameter. Its scratch grows to the largest batch seen.
class SampleSums {
 public:
  // `pool` outlives this.
  explicit SampleSums(ThreadPool* pool) : pool_(pool) {}

  // Calls body(sample, sums) for every sample. The samples of a chunk come in order on one thread
  // and share `sums` [floats], zeros at first, to which each adds its terms. `totals` gets the sums
  // of the chunks, in order.
  void Sum(int64_t samples, int64_t floats,
           absl::FunctionRef<void(int64_t sample, float* sums)> body, float* totals) {
    const int64_t chunks = (samples + kSampleChunk - 1) / kSampleChunk;
    if (static_cast<int64_t>(chunk_sums_.size()) < chunks * floats) {
      chunk_sums_.resize(chunks * floats);
    }
    pool_->ParallelFor(chunks, [&](int64_t chunk, int) {
      float* const sums = chunk_sums_.data() + chunk * floats;
      std::fill_n(sums, floats, 0.0f);
      const int64_t end = std::min((chunk + 1) * kSampleChunk, samples);
      for (int64_t b = chunk * kSampleChunk; b < end; ++b) body(b, sums);
    });
    std::fill_n(totals, floats, 0.0f);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* const sums = chunk_sums_.data() + chunk * floats;
      INDEPENDENT_ITERATIONS
      for (int64_t i = 0; i < floats; ++i) totals[i] += sums[i];
    }
  }

 private:
  ThreadPool* const pool_;
  std::vector<float> chunk_sums_;  // [chunks, floats]
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_ROW_LOOPS_H_
