// The part of the CUDA runtime that the CUDA device uses, on the host, for tests: launch.h includes
// it instead of <cuda_runtime.h>, so that the same kernels and the same device run without a GPU.
// It does not measure speed, and cannot find races between threads of a block.
//
// It is strict where a wrong program might pass on some GPUs:
//   - Device memory cannot be touched by the host: it is protected but while the device works, and
//     every allocation is followed by an inaccessible page. It begins as NaNs.
//   - Everything given to a stream happens late, copies included: at the latest when the host waits
//     for it, at the earliest at any later call. A seeded generator decides when.
//   - Streams are ordered by events only.
//   - Memory is freed at once: work that uses it and hasn't run yet finds it gone.
//   - While a stream captures, no thread may free memory or wait for the device: both are refused,
//     and the capture ends with an error. (CUDA refuses the wait, and may wait in order to free.)
// A host thread's current device (cudaSetDevice) has its own memory and streams.
#ifndef THERMOCLINE_KERNELS_CUDA_EMULATION_RUNTIME_H_
#define THERMOCLINE_KERNELS_CUDA_EMULATION_RUNTIME_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cuda/emulation/block.h"

#define __global__
#define __device__
#define __host__

#define LAUNCH(kernel, blocks, threads, stream, ...) \
  EnqueueGrid(stream, static_cast<unsigned>(blocks), threads, [=] { kernel(__VA_ARGS__); })
#define LAUNCH_WITH_BARRIERS(kernel, blocks, threads, shared_bytes, stream, ...) \
  EnqueueGridWithBarriers(stream, static_cast<unsigned>(blocks), threads,        \
                          static_cast<size_t>(shared_bytes), [=] { kernel(__VA_ARGS__); })
#define GRID_CONSTANT(type) const type&
#define SHARED_MEMORY(type, name) type* const name = static_cast<type*>(SharedMemory())

namespace thermocline {
namespace emulated_cuda {

struct EmulatedStream;
struct EmulatedEvent;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
struct EmulatedGraph;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaDeviceScheduleBlockingSync = 4;
inline constexpr unsigned cudaHostAllocDefault = 0;

// Makes a device with so much memory and returns its ordinal. The seed decides how late things
// happen.
int MakeEmulatedDevice(size_t memory_bytes, uint64_t seed, bool refuses_captures = false);
// Counts over all devices of this process so far. A wait spins unless its event, or for other waits
// the device, was made to let the host's thread sleep.
int64_t NumGraphLaunches();
int64_t NumHostAllocations();
int64_t NumSpinningWaits();

const char* cudaGetErrorString(cudaError_t error);
// These four return the values of the last EmulatedDriverOptions (emulated_device.h); emulated
// devices can be made regardless.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaDeviceSynchronize();
// A capture takes kernels and memsets; nothing else may be asked of its stream.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// Runs `work` in the stream's order, as a kernel of one thread would.
void Enqueue(cudaStream_t stream, std::function<void()> work);
// Returns false, and leaves an error for cudaGetLastError, where a launch has a wrong shape.
bool ShapeIsValid(unsigned blocks, int threads, size_t shared_bytes);

// `thread` is a kernel with its arguments.
template <typename Thread>
void EnqueueGrid(cudaStream_t stream, unsigned blocks, int threads, Thread thread) {
  if (!ShapeIsValid(blocks, threads, 0)) return;
  Enqueue(stream, [blocks, threads, thread] { RunGrid(blocks, threads, thread); });
}

template <typename Thread>
void EnqueueGridWithBarriers(cudaStream_t stream, unsigned blocks, int threads, size_t shared_bytes,
                             Thread thread) {
  if (!ShapeIsValid(blocks, threads, shared_bytes)) return;
  Enqueue(stream, [blocks, threads, shared_bytes, thread] {
    RunGridWithBarriers(blocks, threads, shared_bytes, thread);
  });
}

// The device functions of CUDA's math library that the kernels use. The emulation runs one thread
// at a time.
inline long long atomicMin(long long* to, long long value) {  // NOLINT: CUDA's own signature
  const long long old = *to;                                  // NOLINT
  if (value < old) *to = value;
  return old;
}

}  // namespace emulated_cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_EMULATION_RUNTIME_H_
