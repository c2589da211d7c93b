// The device that device_test runs on: the emulation, or this machine's GPU.
#ifndef THERMOCLINE_TESTS_TRAINING_DEVICE_UNDER_TEST_H_
#define THERMOCLINE_TESTS_TRAINING_DEVICE_UNDER_TEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/train/worker_device.h"

namespace thermocline {

// Returns why there is no such device, so that its tests are skipped; "" if there is one.
std::string NoDeviceUnderTest();
absl::StatusOr<WorkerDevice> MakeDeviceUnderTest();

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_DEVICE_UNDER_TEST_H_
