// Every file of the CUDA device includes this first: the CUDA runtime, or its emulation on the host
// (emulation/runtime.h), and the few macros that let both compile the same kernels. The two builds
// live in different namespaces, so that a test may link both.
#ifndef THERMOCLINE_KERNELS_CUDA_LAUNCH_H_
#define THERMOCLINE_KERNELS_CUDA_LAUNCH_H_

#include <cstdint>

#include "kernels/matrix.h"

#ifdef THERMOCLINE_EMULATE_CUDA

#include "kernels/cuda/emulation/runtime.h"
#define THERMOCLINE_CUDA_NAMESPACE emulated_cuda

#else

#include <cuda_runtime.h>
#define THERMOCLINE_CUDA_NAMESPACE cuda

// kernel<<<...>>>(arguments). A kernel that uses __syncthreads or shuffles is launched
// LAUNCH_WITH_BARRIERS; to CUDA there is no difference.
#define LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(__VA_ARGS__)
#define LAUNCH_WITH_BARRIERS(kernel, blocks, threads, shared_bytes, stream, ...) \
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(__VA_ARGS__)
// A parameter of a kernel that is read where it lies, not copied by every thread.
#define GRID_CONSTANT(type) const __grid_constant__ type
// `type* name`: the shared memory that the launch asked for, aligned to 16 bytes.
#define SHARED_MEMORY(type, name)          \
  extern __shared__ float4 shared_words[]; \
  type* const name = reinterpret_cast<type*>(shared_words)

#endif

#define THERMOCLINE_PRAGMA(text) _Pragma(#text)
#if defined(__CUDACC__) || defined(__clang__)
#define UNROLL(times) THERMOCLINE_PRAGMA(unroll times)
#else
#define UNROLL(times) THERMOCLINE_PRAGMA(GCC unroll times)
#endif

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

inline constexpr int kBlockThreads = 256;
// Threads that share one row of a matrix, in kernels that split rows.
inline constexpr int kRowLanes = 16;
// Kernel parameters beyond this need a newer driver.
inline constexpr int kMaxParameterBytes = 4096;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Matrix::row for device code.
__device__ inline float* RowOf(const Matrix& matrix, int64_t row) {
  return static_cast<float*>(matrix.data) + row * matrix.ld;
}

// kWidth floats that move in one instruction.
template <int kWidth>
struct alignas(sizeof(float) * kWidth) Pack {
  float v[kWidth];

  __device__ static Pack Load(const float* from) { return *reinterpret_cast<const Pack*>(from); }
  __device__ void Store(float* to) const { *reinterpret_cast<Pack*>(to) = *this; }
  __device__ void Add(const Pack& other) {
    UNROLL(4)
    for (int i = 0; i < kWidth; ++i) v[i] += other.v[i];
  }
  __device__ void Scale(float scale) {
    UNROLL(4)
    for (int i = 0; i < kWidth; ++i) v[i] *= scale;
  }
};

// Loads the floats at `from`, times weights[j] where there are weights.
template <int kWidth>
__device__ inline Pack<kWidth> LoadTerm(const float* from, const DeviceSpan<const float>& weights,
                                        int32_t j) {
  Pack<kWidth> term = Pack<kWidth>::Load(from);
  if (weights.size > 0) term.Scale(weights.data[j]);
  return term;
}

// Whether all rows of a matrix can be read as Pack<4>.
inline bool RowsArePacked(const Matrix& matrix) {
  return matrix.ld % 4 == 0 && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_LAUNCH_H_
