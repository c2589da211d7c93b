// The emulation reports the faults that runtime.h lists.
#include "kernels/cuda/emulation/runtime.h"

#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  void UseDevice(uint64_t seed) {
    ASSERT_EQ(cudaSetDevice(MakeEmulatedDevice(1 << 20, seed)), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
  }
  float* DeviceFloats(size_t n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, n * sizeof(float)), cudaSuccess);
    return static_cast<float*>(memory);
  }
  float* HostFloats(size_t n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaHostAlloc(&memory, n * sizeof(float), cudaHostAllocDefault), cudaSuccess);
    return static_cast<float*>(memory);
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
};
using RuntimeDeathTest = RuntimeTest;

void Fill(float* to, int n, float value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = value;
}

// to[i] = the sum of the block's 64 values from[i], through shared memory.
void SumBlock(const float* from, float* to) {
  SHARED_MEMORY(float, shared);
  shared[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  float sum = 0;
  for (unsigned t = 0; t < blockDim.x; ++t) sum += shared[t];
  to[threadIdx.x] = sum;
}

void RotateWarp(float* values) {
  const float lane = static_cast<float>(threadIdx.x % kWarpSize);
  const float right = __shfl_down_sync(~0u, lane, 1, 16);
  values[threadIdx.x] = right + 100 * __shfl_sync(~0u, lane, 3, 16);
}

void LeaveBeforeBarrier() {
  if (threadIdx.x > 0) __syncthreads();
}

void LeaveBeforeShuffle() {
  if (threadIdx.x != 5) __shfl_sync(~0u, 1.0f, 0, 16);
}

TEST_F(RuntimeTest, KernelsSeeBarriersAndShuffles) {
  UseDevice(1);
  float* const from = DeviceFloats(64);
  float* const to = DeviceFloats(64);
  std::vector<float> got(64);
  const float value = 0.5f;
  LAUNCH(Fill, 3, 32, stream_, from, 64, value);
  LAUNCH_WITH_BARRIERS(SumBlock, 1, 64, 64 * sizeof(float), stream_, from, to);
  cudaMemcpyAsync(got.data(), to, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream_);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(got, std::vector<float>(64, 32));
  LAUNCH_WITH_BARRIERS(RotateWarp, 1, 64, 0, stream_, to);
  cudaMemcpyAsync(got.data(), to, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream_);
  cudaStreamSynchronize(stream_);
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, group = lane / 16 * 16;
    const int right = lane % 16 == 15 ? lane : lane + 1;
    EXPECT_EQ(got[t], static_cast<float>(right + 100 * (group + 3))) << t;
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(RuntimeTest, CopiesAreLateAndStreamsUnordered) {
  constexpr float kOld = 3;
  int late = 0, unordered = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    UseDevice(seed);
    float* const device = DeviceFloats(1);
    float* const host = HostFloats(2);
    host[0] = host[1] = kOld;
    LAUNCH(Fill, 1, 1, stream_, device, 1, 4.0f);
    cudaMemcpyAsync(&host[0], device, sizeof(float), cudaMemcpyDeviceToHost, stream_);
    late += host[0] == kOld;
    cudaMemcpyAsync(&host[1], device, sizeof(float), cudaMemcpyDeviceToHost, other_);
    cudaStreamSynchronize(other_);
    unordered += std::isnan(host[1]);
    cudaDeviceSynchronize();
    EXPECT_EQ(host[0], 4);
  }
  EXPECT_GT(late, 20);
  EXPECT_LT(late, 50);
  EXPECT_GT(unordered, 20);
  EXPECT_LT(unordered, 50);
}

TEST_F(RuntimeTest, AWaitedEventOrdersStreams) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    UseDevice(seed);
    float* const device = DeviceFloats(1);
    float* const host = HostFloats(1);
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    LAUNCH(Fill, 1, 1, stream_, device, 1, 4.0f);
    cudaEventRecord(event, stream_);
    LAUNCH(Fill, 1, 1, stream_, device, 0, 5.0f);
    cudaStreamWaitEvent(other_, event, 0);
    cudaMemcpyAsync(host, device, sizeof(float), cudaMemcpyDeviceToHost, other_);
    cudaStreamSynchronize(other_);
    EXPECT_EQ(*host, 4);
    cudaEventDestroy(event);
  }
}

TEST_F(RuntimeTest, CopiesCheckTheirPointers) {
  UseDevice(1);
  float* const device = DeviceFloats(10);
  float* const other = DeviceFloats(10);
  std::vector<float> host(20);
  const auto copy = [&](void* to, const void* from, size_t floats, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, floats * sizeof(float), kind, stream_);
  };
  EXPECT_EQ(copy(device, host.data(), 10, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(copy(device, host.data(), 11, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device + 5, host.data(), 6, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device, other, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), device, 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), host.data(), 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  cudaFree(device);
  EXPECT_EQ(copy(device, host.data(), 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 2 << 20), cudaErrorMemoryAllocation);
}

TEST_F(RuntimeTest, NothingIsFreedOrWaitedForDuringACapture) {
  UseDevice(1);
  float* const device = DeviceFloats(10);
  float* const host = HostFloats(10);
  const auto refused = [&](const std::function<cudaError_t()>& call) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  };
  refused([&] { return cudaFree(device); });
  refused([&] { return cudaFreeHost(host); });
  refused([&] { return cudaDeviceSynchronize(); });
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
}

TEST_F(RuntimeTest, LaunchesOfAWrongShapeAreErrors) {
  UseDevice(1);
  float* const device = DeviceFloats(1);
  LAUNCH(Fill, 1, 2048, stream_, device, 1, 4.0f);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(RuntimeDeathTest, TheHostCannotTouchDeviceMemory) {
  UseDevice(1);
  float* const device = DeviceFloats(10);
  EXPECT_DEATH(*device = 1, "");
  LAUNCH(Fill, 1, 32, stream_, device, 10, 4.0f);
  cudaStreamSynchronize(stream_);
  volatile float got = 0;
  EXPECT_DEATH(got = device[3], "");
  EXPECT_EQ(got, 0);
}

TEST_F(RuntimeDeathTest, KernelsCannotTouchMoreThanWasAllocated) {
  UseDevice(1);
  float* const device = DeviceFloats(12);
  EXPECT_DEATH(
      {
        LAUNCH(Fill, 1, 32, stream_, device, 13, 4.0f);
        cudaStreamSynchronize(stream_);
      },
      "");
}

TEST_F(RuntimeDeathTest, BarriersAreForAll) {
  UseDevice(1);
  EXPECT_DEATH(
      {
        LAUNCH_WITH_BARRIERS(LeaveBeforeBarrier, 1, 64, 0, stream_);
        cudaStreamSynchronize(stream_);
      },
      "CHECK failed");
  EXPECT_DEATH(
      {
        LAUNCH_WITH_BARRIERS(LeaveBeforeShuffle, 1, 64, 0, stream_);
        cudaStreamSynchronize(stream_);
      },
      "CHECK failed");
}

}  // namespace
}  // namespace emulated_cuda
}  // namespace thermocline
