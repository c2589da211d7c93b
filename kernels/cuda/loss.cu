// Binary cross entropy with logits, and the search for values that are not finite.
#include <algorithm>

#include "kernels/bce_arithmetic.h"
#include "kernels/cuda/operations.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

constexpr int64_t kMaxFindBlocks = 1024;

// The sum over the block's threads as a tree, for thread 0. shared: [kBlockThreads]
__device__ double SumOfBlock(double value, double* shared) {
  shared[threadIdx.x] = value;
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  return threadIdx.x == 0 ? shared[0] : 0;
}

// threads: [batch]; partials: [blocks], the sum of each block's losses
__global__ void BceKernel(Matrix logits, const float* labels, const float* weights, float scale,
                          Matrix logits_gradient, double* partials) {
  SHARED_MEMORY(double, shared);
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  double loss = 0;
  if (i < logits.rows) {
    loss = WeightedBce(*RowOf(logits, i), labels, weights, i, scale, RowOf(logits_gradient, i));
  }
  const double sum = SumOfBlock(loss, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// One block; thread t adds partials t, t + 256, ... in order.
__global__ void AddLossesKernel(const double* partials, int64_t num_partials, double* loss_sum) {
  SHARED_MEMORY(double, shared);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num_partials; i += blockDim.x) sum += partials[i];
  sum = SumOfBlock(sum, shared);
  if (threadIdx.x == 0) *loss_sum = sum;
}

__global__ void SetKernel(int64_t value, int64_t* to) { *to = value; }

// index[0] = the least of itself and all i for which values[i] is not finite.
__global__ void FindNonFiniteKernel(DeviceSpan<const float> values, int64_t* index) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < values.size; i += threads) {
    // x - x is 0 for every finite x, and NaN otherwise.
    if (values.data[i] - values.data[i] == 0.0f) continue;
    // The minimum is the same in whatever order. long long is what CUDA's overload is called for.
    atomicMin(reinterpret_cast<long long*>(index), static_cast<long long>(i));  // NOLINT
    return;
  }
}

}  // namespace

int64_t BceScratchDoubles(int64_t batch) { return CeilDiv(batch, kBlockThreads); }

cudaError_t LaunchBceWithLogits(Matrix logits, const float* labels, const float* weights,
                                float scale, Matrix logits_gradient, double* loss_sum,
                                double* scratch, cudaStream_t stream) {
  const int64_t blocks = BceScratchDoubles(logits.rows);
  const int64_t shared_bytes = kBlockThreads * sizeof(double);
  if (blocks > 0) {
    LAUNCH_WITH_BARRIERS(BceKernel, blocks, kBlockThreads, shared_bytes, stream, logits, labels,
                         weights, scale, logits_gradient, scratch);
  }
  LAUNCH_WITH_BARRIERS(AddLossesKernel, 1, kBlockThreads, shared_bytes, stream, scratch, blocks,
                       loss_sum);
  return cudaGetLastError();
}

cudaError_t LaunchFindNonFinite(DeviceSpan<const float> values, int64_t* index,
                                cudaStream_t stream) {
  LAUNCH(SetKernel, 1, 1, stream, values.size, index);
  const int64_t blocks = std::min(CeilDiv(values.size, kBlockThreads), kMaxFindBlocks);
  if (blocks > 0) LAUNCH(FindNonFiniteKernel, blocks, kBlockThreads, stream, values, index);
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
