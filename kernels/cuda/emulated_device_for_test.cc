#include "gtest/gtest.h"
#include "kernels/cuda/device_for_test.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest() { return MakeEmulatedCudaDevice(); }

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
    // Looking at an event that is not reached leaves no error behind for a launch to find.
    device->InteractionForward(FloatMatrix(buffer->floats(), 1, 1), 1,
                               FloatMatrix(buffer->floats(), 1, 1));
    EXPECT_TRUE(device->Synchronize().ok());
  }
  EXPECT_EQ(NumEmulatedSpinningWaits(), before);
}

}  // namespace
}  // namespace thermocline
