#include "worker/train/worker_device.h"

#include <xmmintrin.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

const char kNoLibrary[] = "cannot load cuBLASLt: libcublasLt.so.13: no such file";

// So many GPUs; `made` gets the ordinals of those that become devices.
CudaDevices Gpus(int count, std::multiset<int>* made) {
  CudaDevices cuda;
  cuda.gpu_file = [] { return ""; };
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
  cuda.make = [](const CudaDeviceOptions&) { return absl::FailedPreconditionError(kNoLibrary); };
  return cuda;
}

Job JobOn(Job::Device device) {
  Job job;
  job.set_device(device);
  job.mutable_dlrm();
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
    return absl::FailedPreconditionError("the newest GPU has compute capability 7.5");
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
  EXPECT_EQ(status.message(),
            "device is CUDA: no GPU: the NVIDIA driver finds none; device: CPU does without a GPU, "
            "and AUTO where there is none");
}

TEST(WorkerDeviceTest, TheCpuKnowsBfloat16AndNoTf32) {
  Job job = JobOn(Job::AUTO);
  job.set_precision(BFLOAT16);
  for (const CpuIsa isa : {AUTO, AVX2}) {
    job.mutable_cluster()->set_cpu_isa(isa);
    const auto device = MakeWorkerDevice(job, 0, Gpus(0, nullptr));
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->name, "CPU");
  }
  job.set_precision(TF32);
  const absl::Status status = MakeWorkerDevice(job, 0, Gpus(0, nullptr)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "precision is TF32, which needs a CUDA device: no GPU: the NVIDIA driver finds none");
}

// A rounding mode stands for a CPU whose fused multiply-adds differ: AVX2 is no way around them.
TEST(WorkerDeviceTest, WhereAvx2ComputesOtherwiseFloat32IsTheAdvice) {
  Job job = JobOn(Job::CPU);
  job.set_precision(BFLOAT16);
  job.mutable_cluster()->set_cpu_isa(AVX2);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | _MM_ROUND_TOWARD_ZERO);
  const absl::Status status = MakeWorkerDevice(job, 0, Gpus(0, nullptr)).status();
  _mm_setcsr(mode);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::EndsWith(status.message(),
                             "; with precision FLOAT32 a worker does without products of bf16"))
      << status;
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

// What the CUDA runtime says is emulated; what comes of it is the programs' own.
CudaDevices WithDriver(const EmulatedDriverOptions& driver) {
  CudaDevices cuda = Gpus(1, nullptr);
  cuda.usable = [driver] { return UsableEmulatedGpus(driver); };
  return cuda;
}

TEST(WorkerDeviceTest, ADriverOlderThanTheToolkitIsTold) {
  EmulatedDriverOptions driver;
  driver.driver_version = 12040;
  driver.runtime_version = 13000;
  driver.compute_capabilities = {90};
  const CudaDevices cuda = WithDriver(driver);
  const auto device = MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "CPU (GPU unused)");
  const std::string versions =
      "the NVIDIA driver is too old: it is for CUDA 12.4; this program was built with CUDA 13.0";
  EXPECT_TRUE(absl::StrContains(device->warning, versions)) << device->warning;
  const absl::Status status = MakeWorkerDevice(JobOn(Job::CUDA), 0, cuda).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat("device is CUDA: ", versions)))
      << status;
}

TEST(WorkerDeviceTest, ADriverWithoutItsLibraryIsToldWhereThereIsAGpu) {
  EmulatedDriverOptions driver;
  driver.driver_version = 0;
  driver.runtime_version = 12060;
  driver.compute_capabilities = {90};
  CudaDevices cuda = WithDriver(driver);
  cuda.gpu_file = [] { return "/dev/nvidia3"; };
  const auto device = MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "CPU (GPU unused)");
  for (const char* part : {"libcuda.so.1", "CUDA 12.6", "/dev/nvidia3"}) {
    EXPECT_TRUE(absl::StrContains(device->warning, part)) << device->warning;
  }
  const absl::Status status = MakeWorkerDevice(JobOn(Job::CUDA), 0, cuda).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "/dev/nvidia3")) << status;
  // A machine without a GPU has neither.
  cuda.gpu_file = [] { return ""; };
  const auto cpu = MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->name, "CPU");
  EXPECT_EQ(cpu->warning, "");
}

TEST(WorkerDeviceTest, AProgramBuiltWithoutCudaSaysSoWhereThereIsAGpu) {
  CudaDevices cuda = Gpus(1, nullptr);
  cuda.usable = [] { return absl::UnimplementedError("built without CUDA"); };
  EXPECT_EQ(MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda)->name, "CPU");
  cuda.gpu_file = [] { return "/dev/nvidia0"; };
  EXPECT_EQ(MakeWorkerDevice(JobOn(Job::AUTO), 0, cuda)->name, "CPU (GPU unused)");
}

TEST(WorkerDeviceTest, WhatTheDriverFindsIsWhatThereIs) {
  EmulatedDriverOptions driver;
  EXPECT_EQ(CountEmulatedGpus(driver).status().code(), absl::StatusCode::kNotFound);
  driver.compute_capabilities = {90, 75, 80};
  EXPECT_EQ(*CountEmulatedGpus(driver), 3);
  EXPECT_EQ(*UsableEmulatedGpus(driver), (std::vector<int>{0, 2}));
  driver.compute_capabilities = {70, 75};
  EXPECT_EQ(UsableEmulatedGpus(driver).status().code(), absl::StatusCode::kFailedPrecondition);
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
