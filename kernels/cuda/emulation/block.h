// The threads of a grid on the host, one block after the other. Where a kernel has barriers, every
// thread of a block is a fiber, and a barrier is a switch to the next; elsewhere they are a loop.
#ifndef THERMOCLINE_KERNELS_CUDA_EMULATION_BLOCK_H_
#define THERMOCLINE_KERNELS_CUDA_EMULATION_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace thermocline {
namespace emulated_cuda {

struct Dimension {
  unsigned x = 0;  // The kernels use no other dimension.
};
inline thread_local Dimension threadIdx, blockIdx, blockDim, gridDim;

inline constexpr int kWarpSize = 32;

template <typename Thread>
void RunGrid(unsigned blocks, int threads, const Thread& thread) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    for (int t = 0; t < threads; ++t) {
      threadIdx.x = t;
      thread();
    }
  }
}

// Ends the program where not all threads of a block reach a barrier.
void RunGridWithBarriers(unsigned blocks, int threads, size_t shared_bytes,
                         const std::function<void()>& thread);

// Returns the shared memory of the running block, which holds NaNs at the start of the block.
void* SharedMemory();

void __syncthreads();

// Gives `bits` to the threads of the warp, waits until all of them have called, and returns the
// bits of lane `source`.
uint32_t Exchange(uint32_t bits, int source);

template <typename T>
T ExchangeValue(T value, int source) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = Exchange(bits, source);
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

// REQUIRES: `mask` has all lanes.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return ExchangeValue(value, lane / width * width + source % width);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int source = lane + static_cast<int>(delta);
  return ExchangeValue(value, source / width == lane / width ? source : lane);
}

}  // namespace emulated_cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_EMULATION_BLOCK_H_
