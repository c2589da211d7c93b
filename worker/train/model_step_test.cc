#include "worker/train/model_step.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/job/job_loader.h"
#include "common/job/model_memory.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "kernels/testing/random_values.h"
#include "worker/train/run_options.h"

namespace thermocline {
namespace {

Job Load(const std::vector<std::string>& overrides) {
  const bool is_dlrm = std::none_of(overrides.begin(), overrides.end(), [](const std::string& o) {
    return absl::StrContains(o, "deep") || absl::StrContains(o, "mlp");
  });
  std::vector<std::string> cleared;
  if (!is_dlrm) cleared.push_back("dlrm");
  const auto job = ParseJob(R"(
      name: "memory" data { format: CRITEO_TSV path: "x" }
      default_table { dim: 16 } dlrm { bottom: 64 }
      train { batch_size: 100 eval_batch_size: 300 learning_rate { base: 0.1 } })",
                            "job", overrides, cleared);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

// Makes the model on a GPU that has so much memory left.
absl::Status MakeModel(const Job& job, const BatchRoom& room, size_t bytes) {
  EmulatedDeviceOptions options;
  options.initial_scratch_bytes = 64;
  options.memory_bytes = bytes + *options.initial_scratch_bytes;
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  const DeviceModelStep model(job, ResolveTables(job), device.get(), room);
  return device->Synchronize();
}

// The plan of a job promises these bytes.
TEST(DeviceModelStep, TakesTheMemoryOfAGpuThatItsFormulasSay) {
  const std::vector<std::string> kJobs[] = {
      {"dlrm.bottom=[70, 9]", "dlrm.top=[33, 20]", "default_table.dim=12"},
      {"dense_optimizer.adam={}"},
      {"data.num_dense=0", "dlrm.bottom=[]", "dlrm.top=[129]"},
      {"wide_deep={deep:[70,33] dropout:0.1}"},
      {"deepfm={deep:9}", "default_table.dim=7"},
      {"dcnv2={cross_layers:2 cross_rank:5 deep:20}"},
      {"finalmlp={first:20 second:12 heads:4 gate:9 first_gate_by:'numeric'}"}};
  for (const std::vector<std::string>& overrides : kJobs) {
    SCOPED_TRACE(overrides[0]);
    const Job job = Load(overrides);
    for (const BatchRoom& room : {BatchRoom{300, 100}, BatchRoom{300, 0}}) {
      const size_t bytes = DenseParameterBytes(ResolveTables(job).dense, ComputeOn::kGpu) +
                           DescribeModel(job).ActivationBytes(room, ComputeOn::kGpu);
      EXPECT_TRUE(MakeModel(job, room, bytes).ok()) << MakeModel(job, room, bytes);
      EXPECT_EQ(MakeModel(job, room, bytes - 1).code(), absl::StatusCode::kResourceExhausted);
    }
  }
}

constexpr int kSamples = 100, kKeys = 10;

// Samples whose label is that of the numeric value plus what their keys are worth.
std::unique_ptr<Batch> MakeBatch(int64_t step, std::mt19937_64* rng) {
  auto batch = std::make_unique<Batch>();
  batch->step = Step(step);
  batch->size = kSamples;
  batch->num_dense = batch->dense_stride = 1;
  batch->features.resize(2);
  for (FeatureLookups& feature : batch->features) feature.offsets.push_back(0);
  for (int b = 0; b < kSamples; ++b) {
    double logit = RandomFloats(rng, 1, 1)[0];
    batch->dense.push_back(static_cast<float>(logit));
    for (FeatureLookups& feature : batch->features) {
      feature.keys.push_back((*rng)() % kKeys);
      feature.offsets.push_back(static_cast<int32_t>(feature.keys.size()));
      logit += feature.keys.back() % 2 == 0 ? 3 : -3;
    }
    batch->labels.push_back(logit > 0 ? 1 : 0);
  }
  return batch;
}

// A model that is no DLRM, with tables of two dims, is trained by the steps of all models.
TEST(DeviceModelStep, TrainsAnyModel) {
  std::mt19937_64 rng(TestSeed());
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  const Job job = Load({"data.num_dense=1", "data.num_categorical=2", "default_table.dim=4",
                        "table={name:'C2' settings{dim:1}}", "wide_deep={deep:3}"});
  const JobTables tables = ResolveTables(job);
  DeviceModelStep model(job, tables, device.get(), {kSamples, kSamples});
  const DenseArenas dense = model.dense();
  const std::vector<float> weights = RandomFloats(&rng, dense.weights.size, 0.1f);
  std::copy(weights.begin(), weights.end(), dense.weights.data);
  std::vector<std::vector<float>> rows;  // [table][key, dim]
  for (const TableLayout& table : tables.sparse) {
    rows.push_back(RandomFloats(&rng, kKeys * table.dim, 0.1f));
  }

  BatchPlanner planner = MakePlanner(tables, /*num_servers=*/1, model.vector_places());
  StepContext context;
  auto transfers = std::make_unique<StepTransfers>(device.get());
  double first_loss = 0, last_loss = 0;
  for (int64_t step = 0; step < 200; ++step) {
    context.batch = MakeBatch(step, &rng);
    planner.Plan(*context.batch, &context.plan);
    context.Begin(std::move(transfers));
    std::vector<std::vector<float>> staged(2), gradients(2);
    context.tables.resize(2);
    for (int t = 0; t < 2; ++t) {
      const int dim = tables.sparse[t].dim, unique = context.plan.tables[t].num_unique();
      for (const Key key : context.plan.tables[t].keys) {
        staged[t].insert(staged[t].end(), &rows[t][key * dim], &rows[t][key * dim] + dim);
      }
      gradients[t].resize(staged[t].size());
      context.tables[t].rows = FloatMatrix(staged[t].data(), unique, dim);
      context.tables[t].gradients = FloatMatrix(gradients[t].data(), unique, dim);
    }
    ASSERT_TRUE(model.Forward(&context).ok());
    ASSERT_TRUE(model.BackwardToRows(&context).ok());
    model.BackwardDense();
    ASSERT_TRUE(model.Synchronize().ok());

    const float rate = 1;
    for (int64_t i = 0; i < dense.weights.size; ++i) {
      dense.weights[i] -= rate * dense.gradients[i];
    }
    for (int t = 0; t < 2; ++t) {
      const int dim = tables.sparse[t].dim;
      for (size_t i = 0; i < gradients[t].size(); ++i) {
        rows[t][context.plan.tables[t].keys[i / dim] * dim + i % dim] -= rate * gradients[t][i];
      }
    }
    last_loss = context.outcome()->loss_sums[0];
    if (step == 0) first_loss = last_loss;
    transfers = std::move(context.transfers);
  }
  EXPECT_LT(last_loss, 0.5 * first_loss);
}

}  // namespace
}  // namespace thermocline
