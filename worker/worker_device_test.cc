#include "worker/worker_device.h"

#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"

namespace thermocline {
namespace {

const char kNoLibrary[] = "cannot load cuBLASLt: libcublasLt.so.13: no such file";

// So many GPUs; `made` gets the ordinals of those that become devices.
CudaDevices Gpus(int count, std::multiset<int>* made) {
  CudaDevices cuda;
  cuda.count = [count]() -> absl::StatusOr<int> {
    if (count == 0) return absl::NotFoundError("no GPU: the NVIDIA driver finds none");
    return count;
  };
  cuda.usable = [count]() -> absl::StatusOr<std::vector<int>> {
    if (count == 0) return absl::NotFoundError("no GPU: the NVIDIA driver finds none");
    std::vector<int> all(count);
    std::iota(all.begin(), all.end(), 0);
    return all;
  };
  cuda.info = [](const CudaDeviceOptions& options) -> absl::StatusOr<CudaDeviceInfo> {
    CudaDeviceInfo info;
    info.name = absl::StrCat("Chip ", options.ordinal);
    return info;
  };
  cuda.make = [made](const CudaDeviceOptions& options) -> absl::StatusOr<std::unique_ptr<Device>> {
    made->insert(options.ordinal);
    return MakeCpuDevice({});
  };
  return cuda;
}

CudaDevices WithoutLibrary() {
  CudaDevices cuda = Gpus(1, nullptr);
  cuda.make = [](const CudaDeviceOptions&) { return absl::NotFoundError(kNoLibrary); };
  return cuda;
}

Job JobOn(Job::Device device) {
  Job job;
  job.set_device(device);
  job.mutable_cluster()->set_worker_threads(1);
  return job;
}

TEST(WorkerDeviceTest, WorkersOfAHostTakeItsGpusInTurn) {
  std::multiset<int> made;
  const CudaDevices three = Gpus(3, &made);
  for (uint32_t rank = 0; rank < 7; ++rank) {
    const auto device = MakeWorkerDevice(JobOn(Job::AUTO), rank, three);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->name, absl::StrCat("Chip ", rank % 3, " (GPU ", rank % 3, ")"));
    EXPECT_EQ(device->warning, "");
  }
  EXPECT_EQ(made, (std::multiset<int>{0, 0, 0, 1, 1, 2, 2}));
}

TEST(WorkerDeviceTest, GpusThatAreTooOldAreLeftOut) {
  std::multiset<int> made;
  CudaDevices three = Gpus(3, &made);
  three.usable = []() -> absl::StatusOr<std::vector<int>> { return std::vector<int>{0, 2}; };
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(MakeWorkerDevice(JobOn(Job::CUDA), rank, three).ok());
  }
  EXPECT_EQ(made, (std::multiset<int>{0, 0, 2, 2}));
  three.usable = []() -> absl::StatusOr<std::vector<int>> {
    return absl::NotFoundError("the newest GPU has compute capability 7.5");
  };
  const auto device = MakeWorkerDevice(JobOn(Job::AUTO), 0, three);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "CPU (GPU unused)");
}

TEST(WorkerDeviceTest, TheOnlyGpuIsEverybodys) {
  std::multiset<int> made;
  for (const uint32_t rank : {0u, 5u, UINT32_MAX}) {
    const auto device = MakeWorkerDevice(JobOn(Job::CUDA), rank, Gpus(1, &made));
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->name, "Chip 0");
  }
  EXPECT_EQ(made, (std::multiset<int>{0, 0, 0}));
}

TEST(WorkerDeviceTest, WithoutAGpuAutoIsTheCpuAndCudaAnError) {
  const auto device = MakeWorkerDevice(JobOn(Job::AUTO), 1, Gpus(0, nullptr));
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "CPU");
  EXPECT_EQ(device->warning, "");
  const absl::Status status = MakeWorkerDevice(JobOn(Job::CUDA), 1, Gpus(0, nullptr)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "device is CUDA: no GPU: the NVIDIA driver finds none");
}

TEST(WorkerDeviceTest, AGpuThatCannotBeUsedIsTold) {
  const auto device = MakeWorkerDevice(JobOn(Job::AUTO), 0, WithoutLibrary());
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "CPU (GPU unused)");
  EXPECT_TRUE(absl::StrContains(device->warning, kNoLibrary)) << device->warning;
  const absl::Status status = MakeWorkerDevice(JobOn(Job::CUDA), 0, WithoutLibrary()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  // Who asks for the CPU gets it without a word.
  const auto cpu = MakeWorkerDevice(JobOn(Job::CPU), 0, WithoutLibrary());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->name, "CPU");
  EXPECT_EQ(cpu->warning, "");
}

TEST(WorkerDeviceTest, AnotherFailureOfAGpuEndsTheJob) {
  CudaDevices cuda = Gpus(1, nullptr);
  cuda.info = [](const CudaDeviceOptions&) { return absl::InternalError("CUDA: it is on fire"); };
  const absl::Status status = MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "device is AUTO: CUDA: it is on fire");
}

}  // namespace
}  // namespace thermocline
