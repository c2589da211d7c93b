// A model that new workers train on from some step equals a model trained in one run; checkpoints
// leave the whole model on the servers; an evaluation of a checkpoint scores exactly its model.
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/core/server_core.h"
#include "tests/testing/test_seed.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "worker/session/retry_policy.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

std::string Override(const char* field, int64_t value) { return absl::StrCat(field, "=", value); }

WorkerOptions From(int64_t step) {
  WorkerOptions options;
  options.start_step = Step(step);
  return options;
}

Outcome TrainInOneGo(const Job& job) {
  JobServers servers(job);
  return RunWorkers(job, &servers);
}

// Trains up to `step` - 1, then ends the workers, and trains on with others.
Outcome TrainInTwoRuns(Job job, int64_t step) {
  JobServers servers(job);
  Job first = job;
  first.mutable_train()->set_max_steps(step);
  RunWorkers(first, &servers);
  return RunWorkers(job, &servers, From(step));
}

uint64_t SumOfSamples(const Outcome& outcome) {
  uint64_t samples = 0;
  for (const auto& worker : outcome.workers) samples += worker->samples;
  return samples;
}

class ResumeTest : public testing::TestWithParam<const char*> {};

TEST_P(ResumeTest, TwoRunsGiveTheBitsOfOne) {
  for (const int workers : {1, 2}) {
    const Job job = MakeSmallJob(
        GetParam(), {Override("cluster.workers", workers), "cluster.servers=2", "train.passes=2"});
    const Outcome whole = TrainInOneGo(job);
    ASSERT_EQ(whole.workers[0]->steps, 2 * kSmallJobSteps);
    // In the first pass, at its end, in the second, at the end of all.
    std::vector<int64_t> steps = {1, 5, 12, 17, 24};
    if (kIsSanitized) steps = {5, 17};
    for (const int64_t step : steps) {
      SCOPED_TRACE(absl::StrCat(workers, " workers, step ", step));
      const Outcome resumed = TrainInTwoRuns(job, step);
      EXPECT_EQ(Hex(resumed.digest), Hex(whole.digest));
      for (int rank = 0; rank < workers; ++rank) {
        ASSERT_TRUE(resumed.workers[rank].ok());
        EXPECT_EQ(resumed.workers[rank]->steps, 2 * kSmallJobSteps);
        EXPECT_EQ(resumed.workers[rank]->samples, whole.workers[rank]->samples);
        EXPECT_EQ(resumed.workers[rank]->stats.step(), 2 * kSmallJobSteps);
      }
      EXPECT_EQ(resumed.workers[0]->evaluation.auc, whole.workers[0]->evaluation.auc);
      EXPECT_EQ(resumed.workers[0]->evaluation.logloss, whole.workers[0]->evaluation.logloss);
    }
  }
}

// Rows are counted after steps 3, 7 and 11, and forgotten with the steps after: a run that goes on
// from there forgets the same.
TEST(ResumeLimitTest, TwoRunsGiveTheBitsOfOne) {
  const Job job = MakeSmallJob("adagrad {}", {"cluster.workers=2", "cluster.servers=3",
                                              "default_table.eviction.max_rows=60"});
  const Outcome whole = TrainInOneGo(job);
  for (const int64_t step : {3, 4, 5, 8}) {
    EXPECT_EQ(Hex(TrainInTwoRuns(job, step).digest), Hex(whole.digest)) << step;
  }
}

TEST(ResumeLimitTest, StaleWorkersKeepTheLimit) {
  const Job job =
      MakeSmallJob("sgd {}", {"cluster.workers=2", "cluster.servers=2", "train.staleness_steps=2",
                              "default_table.eviction.max_rows=60"});
  Job ending = job;
  ending.mutable_train()->set_max_steps(9);  // The last forgets what is counted after step 7.
  const Outcome outcome = TrainInOneGo(ending);
  EXPECT_EQ(outcome.workers[0]->steps, 9);
  const Outcome unlimited = TrainInOneGo(
      MakeSmallJob("sgd {}", {"cluster.workers=2", "cluster.servers=2", "train.max_steps=9"}));
  EXPECT_LT(outcome.rows, unlimited.rows);
}

// With one worker the dense parameters are its own: they don't depend on what the rows miss where
// those never change.
TEST_P(ResumeTest, DenseParametersGoOnUnderStaleness) {
  Job job = MakeSmallJob("sgd {} learning_rate_scale: 0",
                         {"cluster.servers=2", "train.staleness_steps=2"});
  *job.mutable_dense_optimizer() = MakeSmallJob(GetParam(), {}).dense_optimizer();
  const Outcome whole = TrainInOneGo(job);
  for (const int64_t step : {1, 2, 7, 12}) {
    EXPECT_EQ(Hex(TrainInTwoRuns(job, step).digest), Hex(whole.digest)) << step;
  }
  Job slower = job;
  slower.mutable_train()->mutable_learning_rate()->set_base(0.04f);
  EXPECT_NE(Hex(TrainInOneGo(slower).digest), Hex(whole.digest));  // They do change.
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ResumeTest, testing::ValuesIn(kOptimizers), NameOfOptimizer);

TEST(ResumeStalenessTest, StaleWorkersGoOnWithinTheirBound) {
  const Job job =
      MakeSmallJob("sgd {}", {"cluster.workers=2", "cluster.servers=2", "train.staleness_steps=2"});
  for (const int64_t step : {1, 6}) {
    const Outcome resumed = TrainInTwoRuns(job, step);
    EXPECT_EQ(SumOfSamples(resumed), 1200u);
    for (const auto& worker : resumed.workers) {
      ASSERT_TRUE(worker.ok());
      EXPECT_EQ(worker->steps, kSmallJobSteps);
      EXPECT_EQ(worker->new_samples, 50u * (kSmallJobSteps - step));
      EXPECT_LE(worker->stats.max_staleness(), 2u);
    }
  }
}

TEST(ResumeErrorTest, AStartThatTheDataDoesNotReachIsNamed) {
  const Job job = MakeSmallJob("sgd {}", {});
  JobServers servers(job);
  InProcessTransport transport(servers.cores());
  WorkerProgress progress(kSmallJobId, WorkerRank(0), /*fd=*/-1);
  WorkerOptions options = From(0);
  options.job_id = kSmallJobId;
  options.generation = kSmallJobGeneration;
  ASSERT_TRUE(RunWorker(job, options, &transport, servers.scheduler(), &progress).ok());
  Job shorter = job;
  shorter.mutable_data()->set_test_share(0.5);  // 750 rows: 8 steps
  options.start_step = Step(kSmallJobSteps);
  const absl::Status status =
      RunWorker(shorter, options, &transport, servers.scheduler(), &progress).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ends after step 7")) << status;
  EXPECT_FALSE(IsServerLoss(status));
}

TEST(ResumeErrorTest, AnotherGenerationIsTheLossOfAServer) {
  const Job job = MakeSmallJob("sgd {}", {});
  JobServers servers(job);
  InProcessTransport transport(servers.cores());
  WorkerProgress progress(kSmallJobId, WorkerRank(0), /*fd=*/-1);
  WorkerOptions options;
  options.job_id = kSmallJobId;
  options.generation = kSmallJobGeneration - 1;
  const absl::Status status =
      RunWorker(job, options, &transport, servers.scheduler(), &progress).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(IsServerLoss(status)) << status;
}

TEST(EvalOnlyTest, TheModelOnTheServersIsScoredAndNotTouched) {
  for (const int workers : {1, 2}) {
    const Job job =
        MakeSmallJob("adam {}", {Override("cluster.workers", workers), "cluster.servers=2"});
    JobServers servers(job);
    const Outcome trained = RunWorkers(job, &servers);
    WorkerOptions options = From(kSmallJobSteps);
    options.eval_only = true;
    const Outcome scored = RunWorkers(job, &servers, options);
    EXPECT_EQ(Hex(scored.digest), Hex(trained.digest));
    EXPECT_EQ(scored.rows, trained.rows);
    ASSERT_TRUE(scored.workers[0].ok());
    EXPECT_EQ(scored.workers[0]->evaluation.samples, 300);
    EXPECT_EQ(scored.workers[0]->evaluation.auc, trained.workers[0]->evaluation.auc);
    EXPECT_EQ(scored.workers[0]->evaluation.logloss, trained.workers[0]->evaluation.logloss);
    EXPECT_EQ(scored.workers[0]->steps, kSmallJobSteps);
    EXPECT_EQ(scored.workers[0]->new_samples, 0u);
  }
}

// After a checkpoint, periodic or named, the servers hold what they would hold had training ended
// there.
TEST(CutTest, TheServersHoldTheWholeModelAfterACut) {
  const Job job = MakeSmallJob("adam {}", {"checkpoint.every_steps=5"});
  const Job without_cuts = MakeSmallJob("adam {}", {});
  JobServers servers(job);
  NamedCheckpoints checkpoints(Step(0));
  ASSERT_TRUE(checkpoints.Name(Step(6)).ok());
  ASSERT_TRUE(checkpoints.Name(Step(8)).ok());
  WriteBackWatch watch(&servers, [&](Step step) {
    if (step == Step(7)) checkpoints.CallOff(Step(8));
    if (step == Step(2)) {
      EXPECT_EQ(checkpoints.Name(Step(2)).code(), absl::StatusCode::kFailedPrecondition);
    }
  });
  WorkerOptions options;
  options.named_checkpoints = &checkpoints;
  const Outcome outcome = RunWorkers(job, &servers, options, &watch);
  std::set<int64_t> steps;
  for (const auto& [step, digest] : watch.digests()) {
    steps.insert(step);
    Job ending = without_cuts;
    ending.mutable_train()->set_max_steps(step + 1);
    EXPECT_EQ(digest, Hex(TrainInOneGo(ending).digest)) << "checkpoint of step " << step;
  }
  EXPECT_EQ(steps, (std::set<int64_t>{4, 6, 9, 11}));
  EXPECT_EQ(Hex(outcome.digest), Hex(TrainInOneGo(without_cuts).digest));
  EXPECT_EQ(checkpoints.Name(Step(1000)).code(),
            absl::StatusCode::kFailedPrecondition);  // It is over.
}

}  // namespace
}  // namespace thermocline
