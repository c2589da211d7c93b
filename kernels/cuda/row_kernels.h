// The forms that kernels of rows have, for layers.cu and steps.cu. Elements have a thread each;
// where columns of a sample are summed, kRowLanes threads share the sample, and lane l has the
// columns l, l + 16, ...; where samples are summed, a thread has one column of one chunk.
#ifndef THERMOCLINE_KERNELS_CUDA_ROW_KERNELS_H_
#define THERMOCLINE_KERNELS_CUDA_ROW_KERNELS_H_

#include <algorithm>

#include "kernels/cuda/operations.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

inline constexpr unsigned kWholeWarp = 0xffffffff;
inline constexpr int kSumThreads = 64;

// threads: [rows, 2^row_threads_log2]. Calls element(row, column) for every element of a matrix.
template <typename Element>
__global__ void ElementsKernel(int64_t rows, int32_t columns, int row_threads_log2,
                               Element element) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = thread >> row_threads_log2;
  if (row >= rows) return;
  const int32_t row_threads = 1 << row_threads_log2;
  for (int32_t c = threadIdx.x & (row_threads - 1); c < columns; c += row_threads) {
    element(row, c);
  }
}

template <typename Element>
cudaError_t LaunchElements(Matrix shape, const Element& element, cudaStream_t stream) {
  if (shape.rows == 0 || shape.cols == 0) return cudaSuccess;
  int row_threads_log2 = 0;
  while ((1 << row_threads_log2) < std::min(shape.cols, kBlockThreads)) ++row_threads_log2;
  const auto kernel = ElementsKernel<Element>;
  const int64_t blocks = CeilDiv(int64_t{shape.rows} << row_threads_log2, kBlockThreads);
  LAUNCH(kernel, blocks, kBlockThreads, stream, shape.rows, shape.cols, row_threads_log2, element);
  return cudaGetLastError();
}

// Returns x after a layer's dropout. row, c: of the mask.
__device__ inline float DropoutOfUnit(const DropoutMask& mask, int64_t step, int64_t row, int32_t c,
                                      float x) {
  const uint64_t row_key = DropoutRowKey(mask.key, mask.steps_before + step, row);
  return DropoutOf(x, mask.scale, DropoutKeeps(DropoutBitsOfColumn(row_key, c), mask.threshold));
}

// threads: [items, kRowLanes]. Calls item(i, lane, has_item) on all of them, since they sum
// together.
template <typename Item>
__global__ void LanesKernel(int64_t items, Item item) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  item(thread / kRowLanes, static_cast<int>(thread % kRowLanes), thread / kRowLanes < items);
}

template <typename Item>
cudaError_t LaunchLanes(int64_t items, const Item& item, cudaStream_t stream) {
  if (items == 0) return cudaSuccess;
  const auto kernel = LanesKernel<Item>;
  LAUNCH_WITH_BARRIERS(kernel, CeilDiv(items * kRowLanes, kBlockThreads), kBlockThreads, 0, stream,
                       items, item);
  return cudaGetLastError();
}

// The value of one lane, for all of them.
template <typename T>
__device__ T OfLane(T value, int lane) {
  return __shfl_sync(kWholeWarp, value, lane, kRowLanes);
}

// The tree over the lanes, for all of them.
__device__ inline float TreeOfLanes(float sum, int lane) {
  for (int half = kRowLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kWholeWarp, sum, half, kRowLanes);
    if (lane < half) sum += other;
  }
  return OfLane(sum, 0);
}

// The sum of term(i) for i in [0, n), for all lanes.
template <typename Term>
__device__ float SumOfLanes(int32_t n, int lane, const Term& term) {
  float sum = -0.0f;
  for (int32_t i = lane; i < n; i += kRowLanes) sum += term(i);
  return TreeOfLanes(sum, lane);
}

// The greatest of the lanes' values, for all of them.
__device__ inline float GreatestOfLanes(float value, int lane) {
  for (int half = kRowLanes / 2; half > 0; half /= 2) {
    value = GreaterOf(value, __shfl_down_sync(kWholeWarp, value, half, kRowLanes));
  }
  return OfLane(value, 0);
}

// y = softmax(x) of n elements, so far apart. y may be x.
__device__ inline void SoftmaxOfLanes(int32_t n, int lane, const float* x, int64_t x_stride,
                                      float* y, int64_t y_stride) {
  float most = n > 0 ? x[0] : 0.0f;
  for (int32_t i = lane; i < n; i += kRowLanes) most = GreaterOf(most, x[i * x_stride]);
  most = GreatestOfLanes(most, lane);
  const float sum = SumOfLanes(n, lane, [=](int32_t i) {
    const float e = ExpOfNonPositive(x[i * x_stride] - most);
    y[i * y_stride] = e;
    return e;
  });
  const float inverse = 1 / sum;
  for (int32_t i = lane; i < n; i += kRowLanes) y[i * y_stride] *= inverse;
}

// x_gradient may be y or y_gradient.
__device__ inline void SoftmaxGradientsOfLanes(int32_t n, int lane, const float* y,
                                               int64_t y_stride, const float* y_gradient,
                                               int64_t y_gradient_stride, float* x_gradient,
                                               int64_t x_gradient_stride) {
  const float dot = SumOfLanes(
      n, lane, [=](int32_t i) { return y[i * y_stride] * y_gradient[i * y_gradient_stride]; });
  for (int32_t i = lane; i < n; i += kRowLanes) {
    x_gradient[i * x_gradient_stride] =
        SoftmaxGradient(y[i * y_stride], y_gradient[i * y_gradient_stride], dot);
  }
}

// blocks: [chunks, column_blocks]; a thread sums one column of one chunk of samples.
template <int kSums, typename Term>
__global__ void ChunkSumsKernel(int64_t rows, int32_t columns, int32_t column_blocks, Term term,
                                float* partials) {  // [kSums, chunks, columns]
  const int64_t chunk = blockIdx.x / column_blocks;
  const int32_t column = blockIdx.x % column_blocks * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int64_t begin = chunk * kSampleChunk;
  const int64_t end = begin + kSampleChunk < rows ? begin + kSampleChunk : rows;
  float sums[kSums] = {};
  UNROLL(8)
  for (int64_t row = begin; row < end; ++row) term(row, column, sums);
  const int64_t chunks = gridDim.x / column_blocks;
  for (int s = 0; s < kSums; ++s) partials[(s * chunks + chunk) * columns + column] = sums[s];
}

// totals[s] gets the sums of all samples.
template <int kSums, typename Term>
cudaError_t LaunchSumsOverSamples(int32_t rows, int32_t columns, const Term& term,
                                  float* const (&totals)[kSums], float* scratch,
                                  cudaStream_t stream) {
  const int64_t chunks = CeilDiv(rows, kSampleChunk);
  const auto column_blocks = static_cast<int32_t>(CeilDiv(columns, kSumThreads));
  if (chunks > 0 && columns > 0) {
    const auto kernel = ChunkSumsKernel<kSums, Term>;
    LAUNCH(kernel, chunks * column_blocks, kSumThreads, stream, rows, columns, column_blocks, term,
           scratch);
  }
  ColumnSums items[kSums];
  for (int s = 0; s < kSums; ++s) {
    items[s] = {totals[s], scratch + s * chunks * columns, static_cast<int32_t>(chunks), columns};
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchAddPartials(items, stream);
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_ROW_KERNELS_H_
