// The benchmark's step runs on either device, and means the same on both.
#include "kernels/step_benchmark.h"

#include <cmath>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

double LossOf(Device* device) {
  StepBenchmark step(device, 32, MlpPrecision::kFloat32);
  std::vector<BenchmarkOperation> operations = step.StepOperations();
  for (BenchmarkOperation& operation : step.CacheOperations()) operations.push_back(operation);
  for (BenchmarkOperation& operation : step.OperationsOfLayers()) operations.push_back(operation);
  for (BenchmarkOperation& operation : step.OperationsOfSteps()) operations.push_back(operation);
  for (const BenchmarkOperation& operation : operations) {
    operation.run();
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << operation.name << ": " << status;
    EXPECT_TRUE(operation.bytes == 0 || operation.flops() == 0) << operation.name;
  }
  EXPECT_GE(step.lookups_per_key(), 1);
  return step.Loss();
}

TEST(StepBenchmarkTest, TheLossIsThatOfTheCpu) {
  const double on_cpu = LossOf(MakeCpuDevice(CpuDeviceOptions()).get());
  const double on_device = LossOf(MakeEmulatedCudaDevice().get());
  EXPECT_TRUE(std::isfinite(on_cpu));
  EXPECT_NEAR(on_device, on_cpu, 1e-5);
}

}  // namespace
}  // namespace thermocline
