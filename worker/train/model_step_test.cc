#include "worker/train/model_step.h"

#include <memory>
#include <string>
#include <vector>

#include "common/job/job_loader.h"
#include "common/job/model_memory.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

Job Load(const std::vector<std::string>& overrides) {
  const auto job = ParseJob(R"(
      name: "memory" data { format: CRITEO_TSV path: "x" }
      default_table { dim: 16 } dlrm { bottom: 64 }
      train { batch_size: 100 eval_batch_size: 300 learning_rate { base: 0.1 } })",
                            "job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

// Makes the model on a GPU that has so much memory left.
absl::Status MakeModel(const Job& job, size_t bytes) {
  EmulatedDeviceOptions options;
  options.initial_scratch_bytes = 64;
  options.memory_bytes = bytes + *options.initial_scratch_bytes;
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  const ModelStep model(job, ResolveTables(job), device.get(), /*max_batch=*/300);
  return device->Synchronize();
}

// The plan of a job promises these bytes (common/job/model_memory.h).
TEST(ModelStep, TakesTheMemoryOfAGpuThatItsFormulasSay) {
  const std::vector<std::string> kJobs[] = {
      {"dlrm.bottom=[70, 9]", "dlrm.top=[33, 20]", "default_table.dim=12"},
      {"dense_optimizer.adam={}"},
      {"data.num_dense=0", "dlrm.bottom=[]", "dlrm.top=[129]"}};
  for (const std::vector<std::string>& overrides : kJobs) {
    SCOPED_TRACE(overrides[0]);
    const Job job = Load(overrides);
    const size_t bytes = DenseParameterBytes(job, ComputeOn::kGpu) +
                         ActivationBytes(job, /*max_batch=*/300, ComputeOn::kGpu);
    EXPECT_TRUE(MakeModel(job, bytes).ok()) << MakeModel(job, bytes);
    EXPECT_EQ(MakeModel(job, bytes - 1).code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace thermocline
