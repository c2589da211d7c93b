#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "kernels/cuda/testing/test_device.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest(
    std::optional<size_t> initial_scratch_bytes) {
  EmulatedDeviceOptions options;
  options.initial_scratch_bytes = initial_scratch_bytes;
  return MakeEmulatedCudaDevice(options);
}

bool DeviceIsRequired() { return true; }

namespace {

TEST(EmulatedDeviceTest, AThreadThatWaitsForTheDeviceSleeps) {
  const int64_t before = NumEmulatedSpinningWaits();
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  const auto buffer = device->Allocate(4), host = device->AllocateHost(4);
  const auto event = device->MakeEvent();
  for (int repeat = 0; repeat < 20; ++repeat) {
    device->CopyToDevice(buffer->data(), host->data(), 4, Stream::kCopy);
    device->Record(Stream::kCopy, event.get());
    EXPECT_TRUE(event->Wait().ok());
    // A query of an event that is not reached leaves no error that a later launch would report.
    device->InteractionForward(FloatMatrix(buffer->floats(), 1, 1), 1,
                               FloatMatrix(buffer->floats(), 1, 1));
    EXPECT_TRUE(device->Synchronize().ok());
  }
  EXPECT_EQ(NumEmulatedSpinningWaits(), before);
}

// Every way in which a device reuses the memory of destroyed buffers: there is room for one buffer
// at a time.
TEST(EmulatedDeviceTest, MemoryOfDestroyedBuffersIsFoundAgain) {
  constexpr size_t kBytes = 1 << 20;
  EmulatedDeviceOptions options;
  options.initial_scratch_bytes = 64;
  options.memory_bytes = kBytes + kBytes / 2;
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  auto buffer = device->Allocate(kBytes);
  for (int repeat = 0; repeat < 3; ++repeat) {
    buffer.reset();
    buffer = device->Allocate(kBytes);
    buffer = device->Grow(std::move(buffer), kBytes, kBytes + 1);
    EXPECT_TRUE(device->Synchronize().ok());
    // Within a capture nothing is freed, so there is no room; afterwards there is.
    EXPECT_EQ(device->Capture([&] {
      buffer.reset();
      EXPECT_EQ(device->Allocate(kBytes)->data(), nullptr);
    }),
              nullptr);
    buffer = device->Allocate(kBytes);
    EXPECT_TRUE(device->Synchronize().ok());
  }
}

TEST(EmulatedDeviceTest, BuffersMayOutliveTheirDevice) {
  std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  auto buffer = device->Allocate(100), host = device->AllocateHost(100);
  static_cast<char*>(host->data())[99] = 7;
  device.reset();
  EXPECT_EQ(static_cast<char*>(host->data())[99], 7);
  host.reset();
  buffer.reset();
}

}  // namespace
}  // namespace thermocline
