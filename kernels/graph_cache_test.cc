#include "kernels/graph_cache.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

constexpr int32_t kRows = 3, kDim = 16;

// Rows of one matrix that are copied to another, and how often that was called.
class Copying {
 public:
  Copying(Device* device, size_t capacity)
      : device_(device),
        from_(device->Allocate(sizeof(float) * kRows * kDim)),
        rows_(device->Allocate(sizeof(int32_t))),
        to_(device->Allocate(sizeof(float) * kDim)),
        graphs_(device, capacity) {}

  // Fills the matrix with `value`, copies row `row`, and returns what came of it.
  float CopyOf(float value, int32_t row) {
    const std::vector<float> values(kRows * kDim, value);
    device_->CopyToDevice(from_->data(), values.data(), sizeof(float) * values.size(),
                          Stream::kCompute);
    device_->CopyToDevice(rows_->data(), &row, sizeof(row), Stream::kCompute);
    graphs_.Run({row, 0}, [this] {
      ++calls_;
      const DeviceSpan<const int32_t> rows = {static_cast<const int32_t*>(rows_->data()), 1};
      device_->GatherRows(
          {{FloatMatrix(from_->floats(), kRows, kDim), rows, FloatMatrix(to_->floats(), 1, kDim)}});
    });
    float copied = -1;
    device_->CopyToHost(&copied, to_->data(), sizeof(copied), Stream::kCompute);
    const absl::Status status = device_->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return copied;
  }
  int calls() const { return calls_; }

 private:
  Device* const device_;
  const std::unique_ptr<DeviceBuffer> from_, rows_, to_;
  GraphCache<std::pair<int32_t, int>> graphs_;
  int calls_ = 0;
};

TEST(GraphCacheTest, RunsThenCapturesThenReplays) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  Copying copying(device.get(), 8);
  for (int time = 1; time <= 5; ++time) {
    const auto value = static_cast<float>(time);
    EXPECT_EQ(copying.CopyOf(value, 0), value);  // The value at the replay, not at the capture.
    EXPECT_EQ(copying.calls(), std::min(time, 2));
  }
  EXPECT_EQ(copying.CopyOf(7, 1), 7);
  EXPECT_EQ(copying.calls(), 3) << "another key is another graph";
}

TEST(GraphCacheTest, WhenItIsFullNewWorkRunsUncapturedAndOthersStay) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  Copying copying(device.get(), 2);
  for (const int32_t row : {0, 1, 2, 0, 1, 2}) EXPECT_EQ(copying.CopyOf(1, row), 1);
  EXPECT_EQ(copying.calls(), 6);
  for (int round = 0; round < 3; ++round) {
    for (const int32_t row : {0, 1, 2}) EXPECT_EQ(copying.CopyOf(2, row), 2);
  }
  EXPECT_EQ(copying.calls(), 9) << "row 2 is copied anew each time, rows 0 and 1 never";
}

TEST(GraphCacheTest, AnIdleGraphIsEvicted) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  Copying copying(device.get(), 2);
  for (const int32_t row : {0, 0, 1, 1}) copying.CopyOf(1, row);
  for (int time = 0; time < 30; ++time) copying.CopyOf(1, 1);
  EXPECT_EQ(copying.calls(), 4);
  for (int time = 0; time < 5; ++time) EXPECT_EQ(copying.CopyOf(3, 2), 3);
  EXPECT_EQ(copying.calls(), 6) << "row 2 has taken the place of row 0";
  EXPECT_EQ(copying.CopyOf(4, 1), 4);
  EXPECT_EQ(copying.calls(), 6);
}

// A copy from ordinary memory waits, which ends a capture; the work is still done.
TEST(GraphCacheTest, WorkThatCannotBeCapturedRunsEachTimeAndIsCounted) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  const std::unique_ptr<DeviceBuffer> memory = device->Allocate(sizeof(float));
  GraphCache<int> graphs(device.get(), 8);
  int calls = 0;
  for (int time = 1; time <= 4; ++time) {
    const auto value = static_cast<float>(time);
    graphs.Run(0, [&] {
      ++calls;
      device->CopyToDevice(memory->data(), &value, sizeof(value), Stream::kCompute);
    });
    float copied = 0;
    device->CopyToHost(&copied, memory->data(), sizeof(copied), Stream::kCompute);
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(copied, value);
  }
  EXPECT_EQ(calls, 5) << "once more for the capture that failed";
  EXPECT_EQ(device->fallbacks().failed_captures, 1);
}

TEST(GraphCacheTest, OnTheHostsMemoryWorkJustRuns) {
  const std::unique_ptr<Device> device = MakeCpuDevice({});
  Copying copying(device.get(), 1);
  for (int time = 1; time <= 4; ++time) {
    EXPECT_EQ(copying.CopyOf(static_cast<float>(time), time % kRows), time);
    EXPECT_EQ(copying.calls(), time);
  }
}

}  // namespace
}  // namespace thermocline
