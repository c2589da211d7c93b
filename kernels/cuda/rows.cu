// Rows updated in place and copied. kRowLanes threads share a row; lane l holds columns l, l + 16,
// ... The arithmetic of an update is common/math/optimizer_rules.h's, element by element.
#include <algorithm>

#include "common/math/optimizer_rules.h"
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

// common/math/row_update.h's SumOfSquaresOf over the lanes of a row; the total, in all lanes. All
// threads of the warp take part, those without a row with dim 0.
template <typename Value>
__device__ float SumOfSquaresByLanes(int32_t dim, int lane, Value value) {
  float sum = 0;
  for (int32_t i = lane; i < dim; i += kRowLanes) sum += value(i) * value(i);
  for (int half = kRowLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, half, kRowLanes);
    if (lane < half) sum += other;
  }
  return __shfl_sync(kAllLanes, sum, 0, kRowLanes);
}

// Whether the update of rows needs sums over them.
bool NeedsSums(const UpdateScalars& scalars) {
  return scalars.clip_norm > 0 || VisitOptimizer(scalars.kind, [](auto kind) {
           return OptimizerRule<kind()>::kStatesPerRow > 0;
         });
}

// common/math/row_update.h's UpdateWeights over the lanes of a row. dim 0: this thread has no row.
template <OptimizerKind kKind>
__device__ void UpdateByLanes(const UpdateScalars& s, bool changes, float scale, RowPointers row,
                              int32_t dim, int lane) {
  using Rule = OptimizerRule<kKind>;
  if (changes && s.clip_norm > 0) {
    const float squares =
        SumOfSquaresByLanes(dim, lane, [&](int i) { return ClipValue(s, row.gradient[i]); });
    scale *= ClipScale(s, /*lookups=*/0, squares, /*weight_squares=*/0.0f);
  }
  const auto gradient = [&](int i) {
    return changes ? ClippedAndDecayed<kKind>(s, scale, row.gradient[i], row.weights[i])
                   : row.gradient[i];
  };
  float rate = s.learning_rate;
  if (Rule::kStatesPerRow > 0) {
    float accumulator = 0;
    const float sum = SumOfSquaresByLanes(dim, lane, gradient);
    if (lane == 0 && dim > 0) {
      accumulator = RowWiseAccumulator(row.state[0], sum, dim);
      row.state[0] = accumulator;
    }
    accumulator = __shfl_sync(kAllLanes, accumulator, 0, kRowLanes);
    rate = RowWiseRate(s, accumulator);
  }
  constexpr int kFirst = Rule::kStatesPerWeight > 0 ? 1 : 0;
  constexpr int kSecond = Rule::kStatesPerWeight > 1 ? 1 : 0;
  for (int32_t i = lane; i < dim; i += kRowLanes) {
    Rule::Update(s, rate, gradient(i), &row.weights[i], row.state + kFirst * i,
                 row.state + kSecond * (dim + i));
  }
}

__device__ void UpdateByLanes(const UpdateScalars& s, const float* scale, RowPointers row,
                              int32_t dim, int lane) {
  const bool changes = scale != nullptr || s.changes_gradients();
  VisitOptimizer(s.kind, [&](auto kind) {
    UpdateByLanes<decltype(kind)::value>(s, changes, scale == nullptr ? 1.0f : *scale, row, dim,
                                         lane);
  });
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
    float* const begin = RowOf(group.rows, group.targets.data[i]);
    row = {RowOf(group.gradients, i), begin + group.weight_column, begin + group.state_column};
  }
  UpdateByLanes(group.scalars, nullptr, row, dim, lane);
}

// threads: [num_rows, kRowLanes]
__global__ void DenseUpdateKernel(UpdateScalars scalars, int64_t num_rows, int32_t row_floats,
                                  int32_t state_floats, const float* gradients, const float* scale,
                                  float* weights, float* state) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  RowPointers row = {};
  if (i < num_rows) {
    row = {gradients + i * row_floats, weights + i * row_floats, state + i * state_floats};
  }
  UpdateByLanes(scalars, scale, row, i < num_rows ? row_floats : 0, lane);
}

// threads: [num_rows, kRowLanes]
__global__ void SquaresKernel(UpdateScalars scalars, int64_t num_rows, int32_t row_floats,
                              const float* gradients, float* squares) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  const float* const row = gradients + i * row_floats;
  const float sum = SumOfSquaresByLanes(i < num_rows ? row_floats : 0, lane, [&](int column) {
    return ClipValue(scalars, row[column]);
  });
  if (lane == 0 && i < num_rows) squares[i] = sum;
}

// One block of kGlobalLanes threads.
__global__ void GlobalClipScaleKernel(float norm, int64_t num_rows, const float* squares,
                                      float* scale) {
  SHARED_MEMORY(double, lanes);
  const int lane = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = lane; i < num_rows; i += kGlobalLanes) sum += squares[i];
  lanes[lane] = sum;
  for (int half = kGlobalLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) lanes[lane] += lanes[lane + half];
  }
  if (lane == 0) scale[0] = GlobalClipScale(norm, lanes[0]);
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
        const bool sums = std::any_of(slice.items, slice.items + slice.num_items,
                                      [](const RowUpdateGroup& g) { return NeedsSums(g.scalars); });
        if (sums) {
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

cudaError_t LaunchGlobalClipScale(const UpdateScalars& scalars, float norm, int64_t num_rows,
                                  int32_t row_floats, const float* gradients, float* squares,
                                  float* scale, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  LAUNCH_WITH_BARRIERS(SquaresKernel, CeilDiv(num_rows, kRowsPerBlock), kBlockThreads, 0, stream,
                       scalars, num_rows, row_floats, gradients, squares);
  LAUNCH_WITH_BARRIERS(GlobalClipScaleKernel, 1, kGlobalLanes, sizeof(double) * kGlobalLanes,
                       stream, norm, num_rows, squares, scale);
  return cudaGetLastError();
}

cudaError_t LaunchDenseUpdate(const UpdateScalars& scalars, int64_t num_rows, int32_t row_floats,
                              int32_t state_floats, const float* gradients, const float* scale,
                              float* weights, float* state, cudaStream_t stream) {
  const int64_t blocks = CeilDiv(num_rows, kRowsPerBlock);
  if (blocks == 0) return cudaSuccess;
  if (NeedsSums(scalars)) {
    LAUNCH_WITH_BARRIERS(DenseUpdateKernel, blocks, kBlockThreads, 0, stream, scalars, num_rows,
                         row_floats, state_floats, gradients, scale, weights, state);
  } else {
    LAUNCH(DenseUpdateKernel, blocks, kBlockThreads, stream, scalars, num_rows, row_floats,
           state_floats, gradients, scale, weights, state);
  }
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
