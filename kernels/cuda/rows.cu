// Rows updated in place and copied. kRowLanes threads share a row; lane l holds columns l, l + 16,
// ... The arithmetic of an update is common/math/row_update.h's, element by element.
#include <algorithm>

#include "common/math/row_update.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/slice.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

constexpr int kRowsPerBlock = kBlockThreads / kRowLanes;
constexpr unsigned kAllLanes = 0xffffffff;

struct RowPointers {
  const float* gradient;  // [dim]
  float* weights;         // [dim]
  float* state;           // [state floats]
};

// common/math/row_update.h's SumOfSquares over the lanes of a row; the total, in lane 0. All
// threads of the warp take part, those without a row with dim 0.
__device__ float SumOfSquaresByLanes(const float* gradient, int32_t dim, int lane) {
  float sum = 0;
  for (int32_t i = lane; i < dim; i += kRowLanes) sum += gradient[i] * gradient[i];
  for (int half = kRowLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, half, kRowLanes);
    if (lane < half) sum += other;
  }
  return sum;
}

// dim 0: this thread has no row.
__device__ void UpdateByLanes(OptimizerKind kind, const UpdateScalars& scalars, RowPointers row,
                              int32_t dim, int lane) {
  float rate = scalars.learning_rate;
  if (kind == OptimizerKind::kRowWiseAdagrad) {
    float accumulator = 0;
    const float sum = SumOfSquaresByLanes(row.gradient, dim, lane);
    if (lane == 0 && dim > 0) {
      accumulator = RowWiseAccumulator(row.state[0], sum, dim);
      row.state[0] = accumulator;
    }
    accumulator = __shfl_sync(kAllLanes, accumulator, 0, kRowLanes);
    rate = RowWiseRate(scalars, accumulator);
  }
  for (int32_t i = lane; i < dim; i += kRowLanes) {
    switch (kind) {
      case OptimizerKind::kSgd:
      case OptimizerKind::kRowWiseAdagrad:
        DescendElement(rate, row.gradient[i], &row.weights[i]);
        break;
      case OptimizerKind::kAdagrad:
        AdagradElement(rate, scalars.epsilon, row.gradient[i], &row.weights[i], &row.state[i]);
        break;
      case OptimizerKind::kAdam:
        AdamElement(scalars, row.gradient[i], &row.weights[i], &row.state[i], &row.state[dim + i]);
        break;
    }
  }
}

// threads of a group: [targets, kRowLanes]
__global__ void SparseUpdateKernel(GRID_CONSTANT(Slice<RowUpdateGroup>) slice) {
  const int item = ItemOfBlock(slice);
  const RowUpdateGroup& group = slice.items[item];
  const int64_t i = ThreadOfItem(slice, item) / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  int32_t dim = 0;
  RowPointers row = {};
  if (i < group.targets.size && group.targets.data[i] < group.rows.rows) {
    dim = group.gradients.cols;
    row.gradient = RowOf(group.gradients, i);
    row.weights = RowOf(group.rows, group.targets.data[i]);
    row.state = row.weights + dim;
  }
  UpdateByLanes(group.optimizer.kind, group.scalars, row, dim, lane);
}

// threads: [num_rows, kRowLanes]
__global__ void DenseUpdateKernel(OptimizerKind kind, UpdateScalars scalars, int64_t num_rows,
                                  int32_t row_floats, int32_t state_floats, const float* gradients,
                                  float* weights, float* state) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  RowPointers row = {};
  if (i < num_rows) {
    row = {gradients + i * row_floats, weights + i * row_floats, state + i * state_floats};
  }
  UpdateByLanes(kind, scalars, row, i < num_rows ? row_floats : 0, lane);
}

// threads of a copy: [rows, cols / kWidth]
template <int kWidth, bool kGather>
__global__ void CopyRowsKernel(GRID_CONSTANT(Slice<RowCopy>) slice) {
  const int item = ItemOfBlock(slice);
  const RowCopy& copy = slice.items[item];
  const int64_t thread = ThreadOfItem(slice, item);
  const int32_t packs = copy.packed.cols / kWidth;
  const int64_t i = thread / packs;
  if (i >= copy.rows.size) return;
  const int32_t column = static_cast<int32_t>(thread % packs) * kWidth;
  float* const scattered = RowOf(copy.scattered, copy.rows.data[i]) + column;
  float* const packed = RowOf(copy.packed, i) + column;
  if (kGather) {
    Pack<kWidth>::Load(scattered).Store(packed);
  } else {
    Pack<kWidth>::Load(packed).Store(scattered);
  }
}

template <int kWidth, bool kGather>
void LaunchCopiesOfWidth(absl::Span<const RowCopy> copies, cudaStream_t stream) {
  const auto kernel = CopyRowsKernel<kWidth, kGather>;
  ForEachSlice(
      copies,
      [](const RowCopy& c) {
        return CeilDiv(c.rows.size * (c.packed.cols / kWidth), kBlockThreads);
      },
      [&](const Slice<RowCopy>& slice) {
        LAUNCH(kernel, slice.num_blocks(), kBlockThreads, stream, slice);
      });
}

template <bool kGather>
cudaError_t LaunchCopies(absl::Span<const RowCopy> copies, cudaStream_t stream) {
  bool packed = true;
  for (const RowCopy& copy : copies) {
    packed = packed && copy.packed.cols % 4 == 0 && RowsArePacked(copy.packed) &&
             RowsArePacked(copy.scattered);
  }
  if (packed) {
    LaunchCopiesOfWidth<4, kGather>(copies, stream);
  } else {
    LaunchCopiesOfWidth<1, kGather>(copies, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchSparseUpdate(absl::Span<const RowUpdateGroup> groups, cudaStream_t stream) {
  ForEachSlice(
      groups,
      [](const RowUpdateGroup& group) { return CeilDiv(group.targets.size, kRowsPerBlock); },
      [&](const Slice<RowUpdateGroup>& slice) {
        const bool row_wise =
            std::any_of(slice.items, slice.items + slice.num_items, [](const RowUpdateGroup& g) {
              return g.optimizer.kind == OptimizerKind::kRowWiseAdagrad;
            });
        if (row_wise) {
          LAUNCH_WITH_BARRIERS(SparseUpdateKernel, slice.num_blocks(), kBlockThreads, 0, stream,
                               slice);
        } else {
          LAUNCH(SparseUpdateKernel, slice.num_blocks(), kBlockThreads, stream, slice);
        }
      });
  return cudaGetLastError();
}

cudaError_t LaunchGatherRows(absl::Span<const RowCopy> copies, cudaStream_t stream) {
  return LaunchCopies<true>(copies, stream);
}

cudaError_t LaunchScatterRows(absl::Span<const RowCopy> copies, cudaStream_t stream) {
  return LaunchCopies<false>(copies, stream);
}

cudaError_t LaunchDenseUpdate(OptimizerKind kind, const UpdateScalars& scalars, int64_t num_rows,
                              int32_t row_floats, int32_t state_floats, const float* gradients,
                              float* weights, float* state, cudaStream_t stream) {
  const int64_t blocks = CeilDiv(num_rows, kRowsPerBlock);
  if (blocks == 0) return cudaSuccess;
  if (kind == OptimizerKind::kRowWiseAdagrad) {
    LAUNCH_WITH_BARRIERS(DenseUpdateKernel, blocks, kBlockThreads, 0, stream, kind, scalars,
                         num_rows, row_floats, state_floats, gradients, weights, state);
  } else {
    LAUNCH(DenseUpdateKernel, blocks, kBlockThreads, stream, kind, scalars, num_rows, row_floats,
           state_floats, gradients, weights, state);
  }
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
