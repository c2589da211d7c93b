// Memory, copies, streams and errors of the device.
#include <numeric>
#include <thread>

#include "kernels/cuda/testing/test_device.h"

namespace thermocline {
namespace {

class MemoryTest : public KernelsTest {
 protected:
  static std::vector<float> Values(size_t n, float first) {
    std::vector<float> v(n);
    std::iota(v.begin(), v.end(), first);
    return v;
  }
};

TEST_F(MemoryTest, IsZeroAtFirst) {
  EXPECT_FALSE(device_->is_host_memory());
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
    const std::unique_ptr<DeviceBuffer> buffer = device_->Allocate(n * sizeof(float));
    const std::unique_ptr<DeviceBuffer> host = device_->AllocateHost(n * sizeof(float));
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(host->floats()[i], 0);
    std::vector<float> got(n, 7);
    device_->CopyToHost(got.data(), buffer->data(), n * sizeof(float), Stream::kCopy);
    EXPECT_EQ(got, std::vector<float>(n, 0));
  }
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Memory that is not AllocateHost's may be reused as soon as the call has returned.
TEST_F(MemoryTest, CopiesOfOrdinaryMemoryAreOverWhenTheyReturn) {
  constexpr size_t kFloats = 100000;
  const std::unique_ptr<DeviceBuffer> buffer = device_->Allocate(kFloats * sizeof(float));
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<float> values = Values(kFloats, repeat);
    const std::vector<float> kept = values;
    device_->CopyToDevice(buffer->data(), values.data(), kFloats * sizeof(float), Stream::kCopy);
    std::fill(values.begin(), values.end(), -1);
    device_->CopyToHost(values.data(), buffer->data(), kFloats * sizeof(float), Stream::kCopy);
    ASSERT_EQ(values, kept);
  }
}

// copy stream: host -> a; compute stream, after it: a -> b; copy stream, after that: b -> host.
TEST_F(MemoryTest, EventsOrderTheStreams) {
  constexpr int32_t kFloats = 1000;
  constexpr size_t kBytes = kFloats * sizeof(float);
  const auto a = device_->Allocate(kBytes), b = device_->Allocate(kBytes);
  const auto in = device_->AllocateHost(kBytes), out = device_->AllocateHost(kBytes);
  Uploads uploads(device_.get());
  const RowCopy copy = {FloatMatrix(a->floats(), 1, kFloats), uploads.PutSpan<int32_t>({0}),
                        FloatMatrix(b->floats(), 1, kFloats)};
  const auto arrived = device_->MakeEvent(), computed = device_->MakeEvent(),
             back = device_->MakeEvent();
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::vector<float> values = Values(kFloats, repeat);
    std::copy(values.begin(), values.end(), in->floats());
    device_->CopyToDevice(a->data(), in->data(), kBytes, Stream::kCopy);
    device_->Record(Stream::kCopy, arrived.get());
    device_->WaitFor(Stream::kCompute, *arrived);
    device_->GatherRows({copy});
    device_->Record(Stream::kCompute, computed.get());
    device_->WaitFor(Stream::kCopy, *computed);
    device_->CopyToHost(out->data(), b->data(), kBytes, Stream::kCopy);
    device_->Record(Stream::kCopy, back.get());
    ASSERT_TRUE(back->Wait().ok());
    ASSERT_EQ(std::vector<float>(out->floats(), out->floats() + kFloats), values);
  }
}

TEST_F(MemoryTest, AnEventNeverRecordedIsPast) {
  const std::unique_ptr<DeviceEvent> event = device_->MakeEvent();
  device_->WaitFor(Stream::kCompute, *event);
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_TRUE(device_->Synchronize().ok());
}

// A captured segment sum and MLP: nothing runs before Replay, which reads the operands as they are
// then. Scratch that grows meanwhile stays with the capture.
TEST_F(MemoryTest, CapturedWorkIsReplayed) {
  constexpr int32_t kRows = 600, kDim = 8;
  MlpConfig config;
  config.widths = {kDim, 1};
  config.max_batch = 1;
  config.weight_offsets = {0};
  config.bias_offsets = {256};
  std::vector<float> first;
  for (Device* device : {cpu_.get(), device_.get()}) {
    Uploads uploads(device);
    const std::unique_ptr<Mlp> mlp = device->CreateMlp(config);
    const std::vector<float> values = Values(int64_t{kRows} * kDim, 0);
    const Matrix rows = FloatMatrix(uploads.Put(values), kRows, kDim);
    std::vector<int32_t> lookups(kRows);
    std::iota(lookups.begin(), lookups.end(), 0);
    const Matrix sum = FloatMatrix(uploads.Put(std::vector<float>(kDim, -1)), 1, kDim);
    const SegmentGroup group = {uploads.PutSpan(lookups), uploads.PutSpan<int32_t>({0, kRows}),
                                sum};
    const Matrix output = FloatMatrix(uploads.Put(std::vector<float>{-1}), 1, 1);
    const auto parameters = uploads.PutSpan(Values(512, 1));
    const std::unique_ptr<CapturedWork> work = device->Capture([&] {
      device->SegmentSum(rows, {group});
      mlp->Forward(parameters, sum, output);
    });
    EXPECT_EQ(uploads.Get(output.floats(), 1)[0], -1);
    // More scratch than the capture has.
    const std::vector<int32_t> many(3 << 18, 0);
    device->SegmentSum(rows, {{uploads.PutSpan(many),
                               uploads.PutSpan<int32_t>({0, static_cast<int32_t>(many.size())}),
                               FloatMatrix(uploads.Put(std::vector<float>(kDim)), 1, kDim)}});
    std::vector<float> results;
    for (float scale : {1.0f, 2.0f, 0.0f}) {
      std::vector<float> scaled = values;
      for (float& value : scaled) value *= scale;
      device->CopyToDevice(rows.data, scaled.data(), scaled.size() * sizeof(float),
                           Stream::kCompute);
      device->Replay(work.get());
      results.push_back(uploads.Get(output.floats(), 1)[0]);
    }
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(results[2], 257);  // the bias
    EXPECT_GT(results[1], results[0]);
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_NEAR(results[i], first[i], 1e-5 * first[i]);
    }
  }
}

// What cannot be captured gives null and leaves no error; the device goes on after it.
TEST_F(MemoryTest, ACaptureOfAWaitIsNone) {
  const auto buffer = device_->Allocate(4);
  float value = 5;
  const auto copy = [&] {  // It waits.
    device_->CopyToDevice(buffer->data(), &value, sizeof(value), Stream::kCompute);
  };
  EXPECT_EQ(device_->Capture(copy), nullptr);
  EXPECT_EQ(device_->fallbacks().failed_captures, 1);
  EXPECT_TRUE(device_->Synchronize().ok());
  copy();
  value = 0;
  device_->CopyToHost(&value, buffer->data(), sizeof(value), Stream::kCompute);
  EXPECT_EQ(value, 5);
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Queued operations use memory that is freed after they were queued: freeing waits for them. (CUDA
// doesn't say that cudaFree does; the emulation's frees at once.)
TEST_F(MemoryTest, FreeingWaitsForWhatUsesTheMemory) {
  constexpr int32_t kFloats = 1000;
  Uploads uploads(device_.get());
  const std::vector<float> values = Values(kFloats, 1);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto to = device_->Allocate(kFloats * sizeof(float));
    auto from = device_->Allocate(kFloats * sizeof(float));
    device_->CopyToDevice(from->data(), values.data(), kFloats * sizeof(float), Stream::kCompute);
    device_->GatherRows({{FloatMatrix(from->floats(), 1, kFloats), uploads.PutSpan<int32_t>({0}),
                          FloatMatrix(to->floats(), 1, kFloats)}});
    from.reset();
    EXPECT_EQ(uploads.Get(to->floats(), kFloats), values);
  }
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Scratch that is too small for a sum is replaced while the sums before it may not have run, also
// within a capture, which can't wait for them.
TEST_F(MemoryTest, ScratchThatGrowsStaysForWhatWasQueued) {
  constexpr int32_t kDim = 4;
  Uploads uploads(device_.get());
  // The first sum needs more than that, and each further one more than half as much again as the
  // one before, which is what scratch grows to.
  for (int repeat = 0; repeat < 3; ++repeat) {
    absl::StatusOr<std::unique_ptr<Device>> device =
        MakeDeviceForTest(/*initial_scratch_bytes=*/64);
    ASSERT_TRUE(device.ok()) << device.status();
    Uploads uploads(device->get());
    const Matrix ones = FloatMatrix(uploads.Put(std::vector<float>(kDim, 1)), 1, kDim);
    std::vector<SegmentGroup> sums;
    for (int32_t lookups = 1 << 12; lookups <= 1 << 15; lookups *= 2) {
      sums.push_back({uploads.PutSpan(std::vector<int32_t>(lookups, 0)),
                      uploads.PutSpan<int32_t>({0, lookups}),
                      FloatMatrix(uploads.Put(std::vector<float>(kDim, -1)), 1, kDim)});
    }
    (*device)->SegmentSum(ones, {sums[0]});
    (*device)->SegmentSum(ones, {sums[1]});
    const auto captured = (*device)->Capture([&] { (*device)->SegmentSum(ones, {sums[2]}); });
    ASSERT_NE(captured, nullptr);
    (*device)->SegmentSum(ones, {sums[3]});
    (*device)->Replay(captured.get());
    for (const SegmentGroup& sum : sums) {
      EXPECT_EQ(uploads.Get(sum.sums.floats(), 1)[0], static_cast<float>(sum.lookups.size));
    }
    EXPECT_TRUE((*device)->Synchronize().ok());
  }
}

// A buffer may be destroyed on any thread, also while the device's thread captures.
TEST_F(MemoryTest, FreeingElsewhereSpoilsNoCapture) {
  constexpr int32_t kFloats = 1000;
  Uploads uploads(device_.get());
  const std::vector<float> values = Values(kFloats, 1);
  const float* const from = uploads.Put(values);
  float* const to = uploads.Put(std::vector<float>(kFloats, -1));
  const RowCopy copy = {FloatMatrix(const_cast<float*>(from), 1, kFloats),
                        uploads.PutSpan<int32_t>({0}), FloatMatrix(to, 1, kFloats)};
  auto buffer = device_->Allocate(100), host = device_->AllocateHost(100);
  const auto captured = device_->Capture([&] {
    std::thread([&] {
      buffer.reset();
      host.reset();
    }).join();
    device_->GatherRows({copy});
  });
  EXPECT_EQ(device_->fallbacks().failed_captures, 0);
  ASSERT_NE(captured, nullptr);
  device_->Replay(captured.get());
  EXPECT_EQ(uploads.Get(to, kFloats), values);
  EXPECT_TRUE(device_->Synchronize().ok());
}

TEST_F(MemoryTest, TooLargeAnAllocationIsReportedOnce) {
  const std::unique_ptr<DeviceBuffer> small = device_->Allocate(sizeof(float));
  const std::unique_ptr<DeviceBuffer> huge = device_->Allocate(size_t{1} << 50);
  EXPECT_EQ(huge->data(), nullptr);
  // Until the error has been returned, no operation runs.
  const float one = 1;
  device_->CopyToDevice(small->data(), &one, sizeof(one), Stream::kCompute);
  EXPECT_EQ(device_->Allocate(4)->data(), nullptr);
  const absl::Status status = device_->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(device_->Synchronize().ok());
  // Launches don't find the old error.
  device_->InteractionForward(FloatMatrix(small->floats(), 1, 1), 1,
                              FloatMatrix(small->floats(), 1, 1));
  EXPECT_TRUE(device_->Synchronize().ok());
  float got = 7;
  device_->CopyToHost(&got, small->data(), sizeof(got), Stream::kCompute);
  EXPECT_EQ(got, 0);
}

TEST_F(MemoryTest, AnEventsWaitReportsErrors) {
  const std::unique_ptr<DeviceEvent> event = device_->MakeEvent();
  device_->Record(Stream::kCompute, event.get());
  device_->Allocate(size_t{1} << 50);
  EXPECT_EQ(event->Wait().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device_->Synchronize().ok());
}

}  // namespace
}  // namespace thermocline
