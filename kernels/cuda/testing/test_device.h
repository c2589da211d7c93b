// The device that the tests of this folder run on beside CpuDevice: the emulation where a test is
// linked with emulated_test_device.cc, a GPU where it is linked with gpu_test_device.cc.
#ifndef THERMOCLINE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_
#define THERMOCLINE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/testing/random_values.h"

namespace thermocline {

// initial_scratch_bytes: see CudaDeviceOptions.
// Errors: kNotFound (a test without a device is skipped), others as they are.
absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest(
    std::optional<size_t> initial_scratch_bytes = std::nullopt);
// Whether a machine without a device fails the tests instead (THERMOCLINE_REQUIRE_GPU).
bool DeviceIsRequired();

// Copies of host vectors in a device's memory, kept while this lives.
class Uploads {
 public:
  explicit Uploads(Device* device) : device_(device) {}

  template <typename T>
  T* Put(const std::vector<T>& values) {
    buffers_.push_back(device_->Allocate(sizeof(T) * values.size()));
    T* const data = static_cast<T*>(buffers_.back()->data());
    device_->CopyToDevice(data, values.data(), sizeof(T) * values.size(), Stream::kCompute);
    return data;
  }
  template <typename T>
  DeviceSpan<const T> PutSpan(const std::vector<T>& values) {
    return {Put(values), static_cast<int64_t>(values.size())};
  }
  template <typename T>
  std::vector<T> Get(const T* data, size_t size) {
    std::vector<T> values(size);
    device_->CopyToHost(values.data(), data, sizeof(T) * size, Stream::kCompute);
    return values;
  }

 private:
  Device* const device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

class KernelsTest : public testing::Test {
 protected:
  // Computes the result of a test on one device, from inputs that the test made before.
  using Computation = std::function<std::vector<float>(Device* device, Uploads* uploads)>;

  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeDeviceForTest();
    if (!device.ok() && !DeviceIsRequired()) GTEST_SKIP() << device.status();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::vector<float> Compute(Device* device, const Computation& computation) {
    Uploads uploads(device);
    std::vector<float> result = computation(device, &uploads);
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }

  // The device's result has the bits of the CPU's.
  void ExpectSameBits(const std::string& what, const Computation& computation) {
    const std::vector<float> expected = Compute(cpu_.get(), computation);
    const std::vector<float> got = Compute(device_.get(), computation);
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(float)), 0)
          << what << ": value " << i << " of " << got.size() << " is " << got[i] << ", not "
          << expected[i];
    }
  }

  std::mt19937_64 rng_{TestSeed()};
  const std::unique_ptr<Device> cpu_ = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  std::unique_ptr<Device> device_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_
