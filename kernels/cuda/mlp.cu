// What an MLP computes beside its matrix products: the ReLU's mask on a gradient, and the sums of
// the gradient's columns, which are the gradients of the biases.
#include <algorithm>

#include "kernels/cuda/operations.h"
#include "kernels/cuda/slice.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

constexpr int kColumnThreads = 64;
constexpr int64_t kMinChunkRows = 32;
// Rows that a thread loads at a time. All are loaded before the first is stored, which the compiler
// can't do itself: a store might change what a later load reads.
constexpr int kRowsInFlight = 8;

int64_t ChunkRows(int64_t rows) {
  return std::max(kMinChunkRows, CeilDiv(rows, kMaxMaskedSumChunks));
}

// blocks: [chunks, column_blocks]; a thread works on one column of one chunk of rows.
__global__ void MaskAndSumKernel(Matrix activation, Matrix gradient, int64_t chunk_rows,
                                 int32_t column_blocks,
                                 float* partials) {  // [chunks, cols] or null
  const int64_t chunk = blockIdx.x / column_blocks;
  const int32_t column = blockIdx.x % column_blocks * blockDim.x + threadIdx.x;
  if (column >= gradient.cols) return;
  const int64_t begin = chunk * chunk_rows;
  const int64_t end = begin + chunk_rows < gradient.rows ? begin + chunk_rows : gradient.rows;
  const bool masks = activation.data != nullptr;
  float sum = 0;
  float values[kRowsInFlight] = {}, active[kRowsInFlight] = {};
  for (int64_t first = begin; first < end; first += kRowsInFlight) {
    UNROLL(8)
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (first + i >= end) continue;
      values[i] = RowOf(gradient, first + i)[column];
      active[i] = masks ? RowOf(activation, first + i)[column] : 1;
    }
    UNROLL(8)
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (first + i >= end) continue;
      if (!(active[i] > 0)) {
        values[i] = 0;
        RowOf(gradient, first + i)[column] = 0;
      }
      sum += values[i];
    }
  }
  if (partials != nullptr) partials[chunk * gradient.cols + column] = sum;
}

// threads of an item: [cols]
__global__ void AddPartialsKernel(GRID_CONSTANT(Slice<ColumnSums>) slice) {
  const int index = ItemOfBlock(slice);
  const ColumnSums& item = slice.items[index];
  const int64_t column = ThreadOfItem(slice, index);
  if (column >= item.cols) return;
  float sum = 0;
  UNROLL(8)
  for (int64_t chunk = 0; chunk < item.chunks; ++chunk) {
    sum += item.partials[chunk * item.cols + column];
  }
  item.sums[column] = sum;
}

}  // namespace

int32_t MaskedSumChunks(int64_t rows) {
  return static_cast<int32_t>(CeilDiv(rows, ChunkRows(rows)));
}

cudaError_t LaunchMaskAndSum(Matrix activation, Matrix gradient, float* partials,
                             cudaStream_t stream) {
  const int64_t chunk_rows = ChunkRows(gradient.rows);
  const int32_t column_blocks = static_cast<int32_t>(CeilDiv(gradient.cols, kColumnThreads));
  const int64_t blocks = int64_t{MaskedSumChunks(gradient.rows)} * column_blocks;
  if (blocks == 0) return cudaSuccess;
  LAUNCH(MaskAndSumKernel, blocks, kColumnThreads, stream, activation, gradient, chunk_rows,
         column_blocks, partials);
  return cudaGetLastError();
}

cudaError_t LaunchAddPartials(absl::Span<const ColumnSums> items, cudaStream_t stream) {
  ForEachSlice(
      items, [](const ColumnSums& item) { return CeilDiv(item.cols, kColumnThreads); },
      [&](const Slice<ColumnSums>& slice) {
        LAUNCH(AddPartialsKernel, slice.num_blocks(), kColumnThreads, stream, slice);
      });
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
