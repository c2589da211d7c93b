// Whole training runs on a device of its own: the CUDA kernels, run by the emulation on this
// machine. Its memory isn't the host's and its streams lag, so that whoever forgets to copy, or to
// wait, reads stale bytes.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "worker/worker.h"

namespace thermocline {
namespace {

Outcome TrainOn(const Job& job, bool emulated, int64_t start_step = 0,
                JobServers* servers = nullptr) {
  std::unique_ptr<JobServers> own;
  if (servers == nullptr) {
    own = std::make_unique<JobServers>(job);
    servers = own.get();
  }
  WorkerOptions options;
  options.start_step = Step(start_step);
  if (emulated) {
    options.make_device = [](const Job&) {
      return WorkerDevice{MakeEmulatedCudaDevice(), "emulated"};
    };
  }
  return RunWorkers(job, servers, options);
}

Job WithCache(Job job, const char* budget, int window_steps, int prefetch_steps) {
  job.mutable_cache()->set_budget(budget);
  job.mutable_cache()->set_window_steps(window_steps);
  job.mutable_cache()->set_prefetch_steps(prefetch_steps);
  return job;
}

class DeviceTest : public testing::TestWithParam<const char*> {};

TEST_P(DeviceTest, CachedAndUncachedHaveTheSameBits) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "checkpoint.every_steps=5"});
  const Outcome uncached = TrainOn(job, /*emulated=*/true);
  ASSERT_TRUE(uncached.workers[0].ok()) << uncached.workers[0].status();
  EXPECT_EQ(uncached.workers[0]->stats.device(), "emulated");
  for (const char* budget : {"29000B", "64KiB", "1MiB"}) {
    for (const int prefetch : {0, 2}) {
      SCOPED_TRACE(absl::StrCat(budget, ", prefetch ", prefetch));
      const Outcome cached = TrainOn(WithCache(job, budget, 4, prefetch), /*emulated=*/true);
      EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
      EXPECT_EQ(cached.rows, uncached.rows);
    }
  }
}

TEST_P(DeviceTest, AgreesWithTheCpuUpToRounding) {
  const Job job = MakeSmallJob(GetParam(), {});
  const Outcome cpu = TrainOn(job, /*emulated=*/false);
  const Outcome emulated = TrainOn(WithCache(job, "64KiB", 4, 2), /*emulated=*/true);
  ASSERT_TRUE(emulated.workers[0].ok()) << emulated.workers[0].status();
  EXPECT_EQ(emulated.rows, cpu.rows);
  EXPECT_NEAR(emulated.workers[0]->evaluation.auc, cpu.workers[0]->evaluation.auc, 0.001);
  EXPECT_NEAR(emulated.workers[0]->evaluation.logloss, cpu.workers[0]->evaluation.logloss, 0.001);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, DeviceTest,
    testing::Values("sgd {}", "adagrad {}", "row_wise_adagrad {}", "adam {}"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find(' '));
    });

TEST(DeviceResumeTest, GoesOnWithTheSameBits) {
  const Job job = WithCache(MakeSmallJob("adam {}", {"cluster.servers=2"}), "64KiB", 4, 2);
  const Outcome whole = TrainOn(job, /*emulated=*/true);
  for (const int64_t step : {1, 7}) {
    JobServers servers(job);
    Job first = job;
    first.mutable_train()->set_max_steps(step);
    TrainOn(first, /*emulated=*/true, 0, &servers);
    EXPECT_EQ(Hex(TrainOn(job, /*emulated=*/true, step, &servers).digest), Hex(whole.digest));
  }
}

TEST(DeviceErrorTest, ALossThatIsNotFiniteEndsTheJob) {
  const Job job =
      WithCache(MakeSmallJob("sgd {}", {"train.learning_rate={base: 1e30}"}), "1MiB", 4, 2);
  JobServers servers(job);
  InProcessTransport transport(servers.cores());
  WorkerProgress progress(kSmallJobId, WorkerRank(0), /*fd=*/-1);
  WorkerOptions options;
  options.job_id = kSmallJobId;
  options.epoch = kSmallJobEpoch;
  options.make_device = [](const Job&) {
    return WorkerDevice{MakeEmulatedCudaDevice(), "emulated"};
  };
  const absl::Status status =
      RunWorker(job, options, &transport, servers.scheduler(), &progress).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "step ")) << status;
}

}  // namespace
}  // namespace thermocline
