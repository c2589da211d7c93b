// Whole training runs on a device of its own: the CUDA kernels, on a GPU or run by the emulation on
// this machine. Its memory isn't the host's and its streams lag, so that code that forgets to copy,
// or to wait, reads stale bytes.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/training/device_under_test.h"
#include "tests/training/small_job.h"
#include "tests/training/static_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

Outcome TrainOn(const Job& job, bool on_device, int64_t start_step = 0,
                JobServers* servers = nullptr) {
  std::unique_ptr<JobServers> own;
  if (servers == nullptr) {
    own = std::make_unique<JobServers>(job);
    servers = own.get();
  }
  WorkerOptions options;
  options.start_step = Step(start_step);
  if (on_device) {
    options.make_device = [](const Job&) { return MakeDeviceUnderTest(); };
  }
  return RunWorkers(job, servers, options);
}

// Expects that two runs of one job have as many rows, and the same evaluation up to rounding.
void ExpectAgree(const Outcome& device, const Outcome& cpu, double auc_error = 0.001) {
  ASSERT_TRUE(device.workers[0].ok()) << device.workers[0].status();
  EXPECT_EQ(device.rows, cpu.rows);
  EXPECT_NEAR(device.workers[0]->evaluation.auc, cpu.workers[0]->evaluation.auc, auc_error);
  EXPECT_NEAR(device.workers[0]->evaluation.logloss, cpu.workers[0]->evaluation.logloss, 0.001);
}

class DeviceRunTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoDeviceUnderTest(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
class DeviceTest : public DeviceRunTest, public testing::WithParamInterface<const char*> {};

TEST_P(DeviceTest, CachedAndUncachedHaveTheSameBits) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "checkpoint.every_steps=5"});
  const Outcome uncached = TrainOn(job, /*on_device=*/true);
  ASSERT_TRUE(uncached.workers[0].ok()) << uncached.workers[0].status();
  EXPECT_NE(uncached.workers[0]->stats.device(), "CPU");
  for (const char* budget : {"29000B", "64KiB", "1MiB"}) {
    for (const int prefetch : {0, 2}) {
      SCOPED_TRACE(absl::StrCat(budget, ", prefetch ", prefetch));
      const Outcome cached = TrainOn(WithCache(job, budget, 4, prefetch), /*on_device=*/true);
      EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
      EXPECT_EQ(cached.rows, uncached.rows);
    }
  }
}

TEST_P(DeviceTest, PlacementsChangeNoBit) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2"});
  const Outcome uncached = TrainOn(job, /*on_device=*/true);
  const auto kinds = {TableSettings::CACHED, TableSettings::REMOTE, TableSettings::DEVICE};
  for (const TableSettings::Placement placement : kinds) {
    SCOPED_TRACE(TableSettings::Placement_Name(placement));
    Job placed = WithCache(job, "256KiB", 4, 2);
    placed.mutable_table(0)->mutable_settings()->set_placement(placement);
    placed.mutable_table(1)->mutable_settings()->set_placement(TableSettings::DEVICE);
    const Outcome cached = TrainOn(placed, /*on_device=*/true);
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
    EXPECT_GT(cached.workers[0]->stats.cache().rows_kept(), 0u);
  }
}

TEST_P(DeviceTest, RowsMayGoBackWhileTheyAreHeld) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2"});
  const Outcome uncached = TrainOn(job, /*on_device=*/true);
  WorkerOptions options;
  options.make_device = [](const Job&) { return MakeDeviceUnderTest(); };
  for (const uint64_t most_bytes : {0, 1000}) {
    SCOPED_TRACE(absl::StrCat("at most ", most_bytes, " bytes unwritten"));
    options.max_unwritten_bytes = most_bytes;
    const Job with_cache = WithCache(job, "64KiB", 4, 2);
    JobServers servers(with_cache);
    const Outcome cached = RunWorkers(with_cache, &servers, options);
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_GT(cached.workers[0]->stats.cache().written_ahead(), 0u);
    EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
  }
}

TEST_P(DeviceTest, AStaticCacheHasTheSameBits) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "checkpoint.every_steps=5"});
  const Outcome uncached = TrainOn(job, /*on_device=*/true);
  for (const int prefetch : {0, 2}) {
    const Outcome cached =
        TrainOn(WithStaticCache(job, "1MiB", 4, prefetch, /*least_lookups=*/6), /*on_device=*/true);
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_GT(cached.workers[0]->stats.cache().hits(), 0u);
    EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
  }
}

TEST_P(DeviceTest, AgreesWithTheCpuUpToRounding) {
  const Job job = MakeSmallJob(GetParam(), {});
  const Outcome cpu = TrainOn(job, /*on_device=*/false);
  const Outcome device = TrainOn(WithCache(job, "64KiB", 4, 2), /*on_device=*/true);
  ExpectAgree(device, cpu);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, DeviceTest, testing::ValuesIn(kOptimizers), NameOfOptimizer);

// Rows have first-order weights, layers drop units, and inputs lie in columns of wider matrices.
TEST_F(DeviceRunTest, EveryModelAgreesWithTheCpuAndHasTheSameBitsWithACache) {
  for (const SmallModel& model : kSmallModels) {
    SCOPED_TRACE(model.name);
    const Job job = MakeSmallJobOf(model, {"cluster.servers=2"});
    const Outcome cpu = TrainOn(job, /*on_device=*/false);
    const Outcome device = TrainOn(job, /*on_device=*/true);
    ExpectAgree(device, cpu);
    EXPECT_EQ(Hex(TrainOn(WithCache(job, "64KiB", 4, 2), /*on_device=*/true).digest),
              Hex(device.digest));
  }
}

TEST_F(DeviceRunTest, SeveralTasksAgreeWithTheCpu) {
  const Job job = MakeJobOfTasks({"cluster.servers=2"});
  const EvaluationResult on_device = TrainOn(job, /*on_device=*/true).workers[0]->evaluation;
  const EvaluationResult on_cpu = TrainOn(job, /*on_device=*/false).workers[0]->evaluation;
  ASSERT_EQ(on_device.tasks.size(), 2u);
  for (size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(on_device.tasks[t].samples, on_cpu.tasks[t].samples);
    EXPECT_NEAR(on_device.tasks[t].logloss, on_cpu.tasks[t].logloss, 1e-4);
  }
}

// Buffers of steps grow in the midst of the run, and captured work is captured anew; one batch has
// no steps but the samples' own, or none at all. (AUC differs more than elsewhere: Adagrad makes a
// whole step of a gradient that is 0 but for rounding, as that of a vector's likeness to itself.)
TEST_F(DeviceRunTest, SequencesAgreeWithTheCpuAndHaveTheSameBitsWithACache) {
  for (const SequenceModel& model : kSequenceModels) {
    SCOPED_TRACE(model.name);
    const Job job = MakeSequenceJob(model.fields, {"cluster.servers=2"}, Histories::kGrowing);
    const Outcome cpu = TrainOn(job, /*on_device=*/false);
    const Outcome device = TrainOn(job, /*on_device=*/true);
    ExpectAgree(device, cpu, /*auc_error=*/0.005);
    EXPECT_EQ(Hex(TrainOn(WithCache(job, "256KiB", 4, 2), /*on_device=*/true).digest),
              Hex(device.digest));
  }
}

TEST_F(DeviceRunTest, DenseOrSparseColumnsAlone) {
  for (const auto& [num_dense, num_categorical] :
       {std::pair(3, 0), std::pair(0, 1), std::pair(0, 3)}) {
    SCOPED_TRACE(absl::StrCat(num_dense, " dense, ", num_categorical, " categorical"));
    const Job job = MakeJobOfColumns(num_dense, num_categorical, {"cluster.servers=2"});
    const Outcome cpu = TrainOn(job, /*on_device=*/false);
    const Outcome device = TrainOn(job, /*on_device=*/true);
    ExpectAgree(device, cpu);
    if (num_categorical == 0) continue;
    EXPECT_EQ(Hex(TrainOn(WithCache(job, "64KiB", 4, 2), /*on_device=*/true).digest),
              Hex(device.digest));
  }
}

TEST_F(DeviceRunTest, GoesOnWithTheSameBits) {
  const Job job = WithCache(MakeSmallJob("adam {}", {"cluster.servers=2"}), "64KiB", 4, 2);
  const Outcome whole = TrainOn(job, /*on_device=*/true);
  for (const int64_t step : {1, 7}) {
    JobServers servers(job);
    Job first = job;
    first.mutable_train()->set_max_steps(step);
    TrainOn(first, /*on_device=*/true, 0, &servers);
    EXPECT_EQ(Hex(TrainOn(job, /*on_device=*/true, step, &servers).digest), Hex(whole.digest));
  }
}

TEST_F(DeviceRunTest, EvaluationsAmidTheRunChangeNothing) {
  for (const char* budget : {"", "64KiB"}) {
    SCOPED_TRACE(budget);
    Job job = MakeSmallJob("adam {}", {"cluster.servers=2"});
    if (*budget != 0) job = WithCache(job, budget, 4, 2);
    const Outcome without = TrainOn(job, /*on_device=*/true);
    job.mutable_evaluate()->set_every_steps(5);
    const Outcome with = TrainOn(job, /*on_device=*/true);
    EXPECT_EQ(Hex(with.digest), Hex(without.digest));
    EXPECT_EQ(with.workers[0]->evaluation.auc, without.workers[0]->evaluation.auc);
  }
}

// One worker under a staleness bound pipelines its steps without a cache, too: its rows never
// change here.
TEST_F(DeviceRunTest, AnUncachedRunMayPipelineItsSteps) {
  const Job job = MakeSmallJob("sgd {} learning_rate_scale: 0", {"cluster.servers=2"});
  Job stale = job;
  stale.mutable_train()->set_staleness_steps(2);
  EXPECT_EQ(Hex(TrainOn(stale, /*on_device=*/true).digest),
            Hex(TrainOn(job, /*on_device=*/true).digest));
}

TEST_F(DeviceRunTest, SeveralWorkersHaveTheSameBitsWithACache) {
  const Job job = MakeSmallJob("adagrad {}", {"cluster.servers=2", "cluster.workers=2"});
  const Outcome uncached = TrainOn(job, /*on_device=*/true);
  for (const char* budget : {"16KiB", "64KiB"}) {
    const Outcome cached = TrainOn(WithCache(job, budget, 4, 2), /*on_device=*/true);
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest)) << budget;
    EXPECT_GT(cached.workers[0]->stats.cache().hits(), 0u) << budget;
  }
  const Outcome cpu = TrainOn(job, /*on_device=*/false);
  EXPECT_NEAR(uncached.workers[0]->evaluation.auc, cpu.workers[0]->evaluation.auc, 0.001);
}

// A run on the CPU counts what a device of its own would have been sent, and would have sent back.
TEST_F(DeviceRunTest, TheCpuCountsTheBytesOfADevice) {
  for (const char* workers : {"cluster.workers=1", "cluster.workers=2"}) {
    for (const char* budget : {"", "29000B", "256KiB"}) {
      SCOPED_TRACE(absl::StrCat(workers, ", cache ", budget));
      Job job = MakeSmallJob("adagrad {}", {"cluster.servers=2", workers});
      if (*budget != 0) job = WithCache(job, budget, 4, 2);
      const Outcome cpu = TrainOn(job, /*on_device=*/false);
      const Outcome device = TrainOn(job, /*on_device=*/true);
      for (size_t rank = 0; rank < cpu.workers.size(); ++rank) {
        ASSERT_TRUE(cpu.workers[rank].ok() && device.workers[rank].ok());
        const WorkerStats& of_cpu = cpu.workers[rank]->stats;
        const WorkerStats& of_device = device.workers[rank]->stats;
        EXPECT_GT(of_cpu.bytes_to_device(), 0u);
        EXPECT_GT(of_cpu.bytes_from_device(), 0u);
        EXPECT_EQ(of_cpu.bytes_to_device(), of_device.bytes_to_device());
        EXPECT_EQ(of_cpu.bytes_from_device(), of_device.bytes_from_device());
      }
    }
  }
}

TEST_F(DeviceRunTest, ALossThatIsNotFiniteEndsTheJob) {
  const Job job =
      WithCache(MakeSmallJob("sgd {}", {"train.learning_rate={base: 1e30}"}), "1MiB", 4, 2);
  WorkerOptions options;
  options.make_device = [](const Job&) { return MakeDeviceUnderTest(); };
  const absl::Status status = StatusOfRun(job, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "step ")) << status;
}

}  // namespace
}  // namespace thermocline
