// Pairwise dot products of a sample's vectors. One block works on one sample: it brings the
// sample's vectors into shared memory, and every thread computes whole results in the canonical
// order.
#include "kernels/cuda/operations.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

constexpr int kInteractionThreads = 128;
constexpr int kDotLanes = 16;
// Every GPU gives a block so much shared memory without being asked. Larger samples are read from
// global memory.
constexpr int64_t kMaxStagedFloats = 48 * 1024 / sizeof(float);

__host__ __device__ constexpr int32_t PairsOf(int32_t vectors) {
  return vectors * (vectors - 1) / 2;
}

// Rows of staged vectors are this far apart, so that threads that read neighbouring vectors don't
// meet in a bank.
__host__ __device__ constexpr int32_t StagedStride(int32_t dim) {
  return dim % 4 == 0 ? dim + 4 : dim | 1;
}

// A sample's vectors, staged or where they were.
struct Vectors {
  const float* data;
  int32_t stride;

  __device__ const float* row(int32_t i) const { return data + int64_t{i} * stride; }
};

// The dot product of 16 lanes and their tree. (-0 + x is x, for every x.)
template <int kWidth>
__device__ float LaneDot(const float* a, const float* b, int32_t dim) {
  float lanes[kDotLanes];
  UNROLL(16)
  for (int l = 0; l < kDotLanes; ++l) lanes[l] = -0.0f;
  int32_t i = 0;
  for (; i + kDotLanes <= dim; i += kDotLanes) {
    UNROLL(16)
    for (int l = 0; l < kDotLanes; l += kWidth) {
      const auto x = Pack<kWidth>::Load(a + i + l), y = Pack<kWidth>::Load(b + i + l);
      UNROLL(4)
      for (int w = 0; w < kWidth; ++w) lanes[l + w] += x.v[w] * y.v[w];
    }
  }
  UNROLL(16)
  for (int l = 0; l < kDotLanes; ++l) {
    if (i + l < dim) lanes[l] += a[i + l] * b[i + l];
  }
  UNROLL(4)
  for (int half = kDotLanes / 2; half > 0; half /= 2) {
    UNROLL(8)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// The vector i of pair p, counted (1, 0), (2, 0), (2, 1), (3, 0), ...
__device__ int32_t FirstOfPair(int32_t p) {
  int32_t i = static_cast<int32_t>((1.0f + sqrtf(1.0f + 8.0f * static_cast<float>(p))) * 0.5f);
  while (PairsOf(i) > p) --i;
  while (PairsOf(i + 1) <= p) ++i;
  return i;
}

// Copies a sample's vectors [vectors, dim] to `staged` [vectors, StagedStride(dim)].
__device__ Vectors Stage(const float* z, int32_t vectors, int32_t dim, float* staged) {
  const int32_t stride = StagedStride(dim);
  for (int32_t t = threadIdx.x; t < vectors * dim; t += blockDim.x) {
    staged[t / dim * stride + t % dim] = z[t];
  }
  return {staged, stride};
}

template <int kWidth, bool kStaged>
__global__ void InteractionForwardKernel(Matrix z, int32_t vectors, int32_t dim, Matrix output) {
  SHARED_MEMORY(float, staged);
  const float* const from = RowOf(z, blockIdx.x);
  float* const to = RowOf(output, blockIdx.x);
  Vectors sample = {from, dim};
  if (kStaged) {
    sample = Stage(from, vectors, dim, staged);
    __syncthreads();
  }
  const int32_t pairs = PairsOf(vectors);
  for (int32_t c = threadIdx.x; c < dim; c += blockDim.x) to[c] = from[c];
  for (int32_t p = threadIdx.x; p < pairs; p += blockDim.x) {
    const int32_t i = FirstOfPair(p);
    to[dim + p] = LaneDot<kWidth>(sample.row(i), sample.row(p - PairsOf(i)), dim);
  }
}

// z_gradient[i] = direct + sum over j of gradient(i, j) z[j], j ascending, as one chain of FMAs. A
// thread holds kWidth columns of one i.
template <int kWidth, bool kStaged>
__global__ void InteractionBackwardKernel(Matrix z, int32_t vectors, int32_t dim,
                                          Matrix output_gradient, Matrix z_gradient) {
  SHARED_MEMORY(float, staged);
  const float* const gradient = RowOf(output_gradient, blockIdx.x);
  const float* dots = gradient + dim;
  Vectors sample = {RowOf(z, blockIdx.x), dim};
  if (kStaged) {
    sample = Stage(sample.data, vectors, dim, staged);
    float* const staged_dots = staged + vectors * StagedStride(dim);
    for (int32_t p = threadIdx.x; p < PairsOf(vectors); p += blockDim.x) staged_dots[p] = dots[p];
    dots = staged_dots;
    __syncthreads();
  }
  const int32_t packs = dim / kWidth;
  for (int32_t t = threadIdx.x; t < vectors * packs; t += blockDim.x) {
    const int32_t i = t / packs, column = t % packs * kWidth;
    Pack<kWidth> sum = {};
    if (i == 0) sum = Pack<kWidth>::Load(gradient + column);
    for (int32_t j = 0; j < vectors; ++j) {
      if (j == i) continue;
      const float g = dots[i > j ? PairsOf(i) + j : PairsOf(j) + i];
      const auto row = Pack<kWidth>::Load(sample.row(j) + column);
      UNROLL(4)
      for (int w = 0; w < kWidth; ++w) sum.v[w] = fmaf(g, row.v[w], sum.v[w]);
    }
    sum.Store(RowOf(z_gradient, blockIdx.x) + int64_t{i} * dim + column);
  }
}

template <int kWidth>
void LaunchForwardOfWidth(Matrix z, int32_t vectors, int32_t dim, Matrix output,
                          cudaStream_t stream) {
  const int64_t staged_floats = int64_t{vectors} * StagedStride(dim);
  if (staged_floats <= kMaxStagedFloats) {
    const auto kernel = InteractionForwardKernel<kWidth, true>;
    LAUNCH_WITH_BARRIERS(kernel, z.rows, kInteractionThreads, staged_floats * sizeof(float), stream,
                         z, vectors, dim, output);
  } else {
    const auto kernel = InteractionForwardKernel<kWidth, false>;
    LAUNCH(kernel, z.rows, kInteractionThreads, stream, z, vectors, dim, output);
  }
}

template <int kWidth>
void LaunchBackwardOfWidth(Matrix z, int32_t vectors, int32_t dim, Matrix output_gradient,
                           Matrix z_gradient, cudaStream_t stream) {
  const int64_t staged_floats = int64_t{vectors} * StagedStride(dim) + PairsOf(vectors);
  if (staged_floats <= kMaxStagedFloats) {
    const auto kernel = InteractionBackwardKernel<kWidth, true>;
    LAUNCH_WITH_BARRIERS(kernel, z.rows, kInteractionThreads, staged_floats * sizeof(float), stream,
                         z, vectors, dim, output_gradient, z_gradient);
  } else {
    const auto kernel = InteractionBackwardKernel<kWidth, false>;
    LAUNCH(kernel, z.rows, kInteractionThreads, stream, z, vectors, dim, output_gradient,
           z_gradient);
  }
}

}  // namespace

cudaError_t LaunchInteractionForward(Matrix z, int32_t vectors, Matrix output,
                                     cudaStream_t stream) {
  if (z.rows == 0) return cudaSuccess;
  const int32_t dim = z.cols / vectors;
  if (dim % 4 == 0 && RowsArePacked(z)) {
    LaunchForwardOfWidth<4>(z, vectors, dim, output, stream);
  } else {
    LaunchForwardOfWidth<1>(z, vectors, dim, output, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                                      Matrix z_gradient, cudaStream_t stream) {
  if (z.rows == 0) return cudaSuccess;
  const int32_t dim = z.cols / vectors;
  if (dim % 4 == 0 && RowsArePacked(z) && RowsArePacked(output_gradient) &&
      RowsArePacked(z_gradient)) {
    LaunchBackwardOfWidth<4>(z, vectors, dim, output_gradient, z_gradient, stream);
  } else {
    LaunchBackwardOfWidth<1>(z, vectors, dim, output_gradient, z_gradient, stream);
  }
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
