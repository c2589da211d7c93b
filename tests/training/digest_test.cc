// The promise of reproducibility (docs/protocol.md): the trained model has the same bits for
// any number of servers and threads, on every run, and those of the reference trainer.
#include <cstdio>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/scheduler.h"
#include "gtest/gtest.h"
#include "server/core/server_core.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/reference_trainer.h"
#include "tests/training/small_job.h"
#include "worker/session/retry_policy.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

// Keeps rank 1's pushes back until rank 0 pushes `step`; does nothing if that is kNoStep.
class SlowRankTransport : public Transport {
 public:
  SlowRankTransport(Transport* transport, Step step)
      : transport_(transport), step_(step), open_(step == kNoStep) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    transport_->Pull(server, call, deadline_us, std::move(done));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    std::vector<std::function<void()>> released;
    {
      absl::MutexLock lock(&mutex_);
      const bool fast = call.header.rank == WorkerRank(0);
      if (fast && call.step >= step_) open_ = true;
      if (open_) released.swap(kept_);
      (open_ || fast ? released : kept_).push_back([=] {
        transport_->Push(server, call, deadline_us, done);
      });
    }
    for (const std::function<void()>& push : released) push();
  }
  void Close() override {}

 private:
  Transport* const transport_;
  const Step step_;
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> kept_ ABSL_GUARDED_BY(mutex_);
};

// Runs the whole system, but for gRPC, in one process.
//   held_back_until: the step of SlowRankTransport
Outcome Train(const Job& job, Step held_back_until = kNoStep) {
  JobServers servers(job);
  InProcessTransport in_process(servers.cores());
  SlowRankTransport transport(&in_process, held_back_until);
  return RunWorkers(job, &servers, {}, &transport);
}

std::string ReferenceDigest(const Job& job) {
  const absl::StatusOr<ReferenceResult> reference = TrainReference(job);
  EXPECT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(reference->steps, kSmallJobSteps);
  return Hex(reference->digest);
}

class DigestTest : public testing::TestWithParam<const char*> {};

TEST_P(DigestTest, OneWorkerGivesTheReferencesBitsForAnyServersAndThreads) {
  const std::string reference = ReferenceDigest(MakeSmallJob(GetParam(), {}));
  for (int servers : {1, 2, 4}) {
    for (int threads : {1, 2, 4}) {
      const Job job =
          MakeSmallJob(GetParam(), {"cluster.servers=" + std::to_string(servers),
                                    "cluster.worker_threads=" + std::to_string(threads)});
      EXPECT_EQ(Hex(Train(job).digest), reference) << servers << " servers, " << threads;
    }
  }
}

// Products of bf16 have bits of their own, which are the same with all instructions.
TEST(PrecisionTest, Bfloat16HasTheReferencesBitsForAnyServersThreadsAndInstructions) {
  const auto make = [](std::vector<std::string> overrides) {
    overrides.push_back("precision=BFLOAT16");
    return MakeSmallJob("adagrad {}", overrides);
  };
  const std::string reference = ReferenceDigest(make({}));
  EXPECT_NE(reference, ReferenceDigest(MakeSmallJob("adagrad {}", {})));
  EXPECT_EQ(Hex(Train(make({"cluster.servers=2", "cluster.worker_threads=3"})).digest), reference);
  EXPECT_EQ(Hex(Train(make({"cluster.cpu_isa=AVX2"})).digest), reference);
  EXPECT_EQ(Hex(Train(WithCache(make({"cluster.servers=2"}), "64KiB", 4, 2)).digest), reference);
}

TEST_P(DigestTest, TwoWorkersInSyncGiveTheReferencesBitsOnEveryRun) {
  const std::string reference = ReferenceDigest(MakeSmallJob(GetParam(), {"cluster.workers=2"}));
  EXPECT_NE(reference,
            ReferenceDigest(MakeSmallJob(GetParam(), {})));  // Other sums, other rounding.
  for (int run = 0; run < 3; ++run) {
    const Job job = MakeSmallJob(
        GetParam(), {"cluster.workers=2", "cluster.servers=" + std::to_string(1 + run)});
    EXPECT_EQ(Hex(Train(job).digest), reference) << run;
  }
}

// Workers update the dense parameters by slices, or the servers do. The last step has 3 rows, so
// some workers have none.
TEST_P(DigestTest, WhoUpdatesTheDenseParametersChangesNoBit) {
  for (const int workers : {2, 3, 5, 8}) {
    const Job job =
        MakeSmallJob(GetParam(), {absl::StrCat("cluster.workers=", workers), "cluster.servers=2",
                                  "data.test_share=0.198", "checkpoint.every_steps=5"});
    std::string digests[2];
    for (const DenseBy by : {DenseBy::kServers, DenseBy::kSlices}) {
      JobServers servers(job);
      const Outcome outcome = RunWorkers(job, &servers, {}, nullptr, by);
      ASSERT_TRUE(outcome.workers[0].ok());
      EXPECT_EQ(outcome.workers[0]->steps, 13);
      digests[static_cast<int>(by)] =
          absl::StrCat(Hex(outcome.digest), " ", outcome.workers[0]->evaluation.logloss);
    }
    EXPECT_EQ(digests[0], digests[1]) << workers << " workers";
  }
}

TEST(OptimizersTest, EachGivesTheReferencesBits) {
  std::set<std::string> digests;
  for (const char* const optimizer :
       {"ftrl { l1: 1e-4 }", "rms_prop {}",
        "momentum { momentum: 0.8 } clip_value: 0.05 clip_norm: 0.02 weight_decay: 1e-3",
        "sgd {} cow_clip { ratio: 1e-3 floor: 1e-5 }",
        "sgd {} cow_clip { ratio: 1e-3 floor: 1e-3 }"}) {
    for (const char* const dense :
         {"adam_w {} weight_decay: 0.1 clip_global_norm: 0.01", "adam_w {} weight_decay: 0.1"}) {
      const Job job = MakeSmallJob(
          optimizer, {"cluster.servers=2", absl::StrCat("dense_optimizer={", dense, "}")});
      const std::string reference = ReferenceDigest(job);
      EXPECT_TRUE(digests.insert(reference).second) << optimizer << ", " << dense;
      EXPECT_EQ(Hex(Train(job).digest), reference) << optimizer << ", " << dense;
      EXPECT_EQ(Hex(Train(WithCache(job, "64KiB", 4, 2)).digest), reference) << optimizer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, DigestTest, testing::ValuesIn(kOptimizers), NameOfOptimizer);

// Here a sample's label is its weight: only clicks count.
TEST(WeightsTest, WeightedSamplesGiveTheReferencesBits) {
  for (const int workers : {1, 2}) {
    const std::vector<std::string> of_workers = {"cluster.workers=" + std::to_string(workers)};
    const Job plain = MakeJobOfColumns(2, 3, of_workers);
    const Job weighted = MakeJobOfColumns(2, 3, {of_workers[0], "data.weight='label'"});
    const std::string reference = ReferenceDigest(weighted);
    EXPECT_NE(reference, ReferenceDigest(plain));
    const Outcome outcome = Train(weighted);
    EXPECT_EQ(Hex(outcome.digest), reference);
    ASSERT_TRUE(outcome.workers[0].ok());
    // About half of the samples count, and the loss is divided by the number of all.
    EXPECT_LT(outcome.workers[0]->stats.loss(), 0.4);
  }
}

// Lists whose values have weights: with servers, threads, several workers and a cache.
TEST(WeightsTest, WeightedListsGiveTheReferencesBits) {
  const auto job = [](const std::vector<std::string>& overrides) {
    return MakeWeightedJob("adagrad {}", overrides);
  };
  const std::string reference = ReferenceDigest(job({}));
  EXPECT_NE(reference, ReferenceDigest(job({"feature[1].categorical.weights=''"})));
  EXPECT_NE(reference, ReferenceDigest(job({"feature[2].categorical.weights=''"})));
  const Outcome outcome = Train(job({"cluster.servers=2", "cluster.worker_threads=2"}));
  EXPECT_EQ(Hex(outcome.digest), reference);
  const Outcome cached = Train(WithCache(job({"cluster.servers=2"}), "32KiB", 3, 2));
  ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
  EXPECT_EQ(Hex(cached.digest), reference);
  EXPECT_EQ(cached.workers[0]->evaluation.auc, outcome.workers[0]->evaluation.auc);
  EXPECT_GT(cached.workers[0]->stats.cache().hits(), 0u);
  const std::vector<std::string> of_two = {"cluster.workers=2", "cluster.servers=3"};
  EXPECT_EQ(Hex(Train(job(of_two)).digest), ReferenceDigest(job(of_two)));
}

// The numbers of dense and of categorical columns.
class ColumnsTest : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  static Job MakeJob(const std::vector<std::string>& overrides) {
    return MakeJobOfColumns(GetParam().first, GetParam().second, overrides);
  }
};

TEST_P(ColumnsTest, DenseOrSparseColumnsAloneGiveTheReferencesBits) {
  for (const int workers : {1, 2}) {
    const std::string of_workers = "cluster.workers=" + std::to_string(workers);
    const std::string reference = ReferenceDigest(MakeJob({of_workers}));
    for (const int servers : {1, 2}) {
      const Outcome outcome =
          Train(MakeJob({of_workers, "cluster.servers=" + std::to_string(servers)}));
      EXPECT_EQ(Hex(outcome.digest), reference) << workers << " workers, " << servers;
      ASSERT_TRUE(outcome.workers[0].ok());
      EXPECT_EQ(outcome.workers[0]->evaluation.samples, 300);
    }
  }
}

TEST_P(ColumnsTest, ACacheKeepsTheBits) {
  if (GetParam().second == 0) GTEST_SKIP() << "there are no rows to keep";
  const Job job = MakeJob({"cluster.servers=2"});
  EXPECT_EQ(Hex(Train(WithCache(job, "64KiB", 4, 2)).digest), Hex(Train(job).digest));
}

INSTANTIATE_TEST_SUITE_P(Columns, ColumnsTest,
                         testing::Values(std::pair(3, 0), std::pair(1, 0), std::pair(0, 1),
                                         std::pair(0, 3)));

// A key gets its row after so many lookups, and loses it after so many steps without one.
class AdmissionTest : public testing::TestWithParam<std::vector<std::string>> {
 protected:
  static Job MakeJob(std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), GetParam().begin(), GetParam().end());
    return MakeSmallJob("adagrad {}", overrides);
  }
};

TEST_P(AdmissionTest, GivesTheReferencesBitsForAnyServersAndWorkers) {
  EXPECT_NE(ReferenceDigest(MakeJob({})), ReferenceDigest(MakeSmallJob("adagrad {}", {})));
  for (const int workers : {1, 2}) {
    const std::string of_workers = "cluster.workers=" + std::to_string(workers);
    const std::string reference = ReferenceDigest(MakeJob({of_workers}));
    for (const int servers : {1, 2, 4}) {
      const Job job = MakeJob({of_workers, "cluster.servers=" + std::to_string(servers),
                               "cluster.server_threads=" + std::to_string(servers)});
      EXPECT_EQ(Hex(Train(job).digest), reference) << workers << " workers, " << servers;
    }
  }
}

// A cache holds no rows of such a table: the servers alone know which keys have one.
TEST_P(AdmissionTest, ACacheKeepsTheBits) {
  const Job job = MakeJob({"cluster.servers=2"});
  const std::string uncached = Hex(Train(job).digest);
  for (const auto& [window, prefetch] : {std::pair(1, 0), std::pair(4, 2), std::pair(20, 6)}) {
    const Outcome cached = Train(WithCache(job, "64KiB", window, prefetch));
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_EQ(Hex(cached.digest), uncached) << window;
    EXPECT_EQ(cached.workers[0]->stats.cache().loaded(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, AdmissionTest,
    testing::Values(std::vector<std::string>{"default_table.min_count=3"},
                    std::vector<std::string>{"default_table.eviction.unused_steps=2"},
                    std::vector<std::string>{"default_table.min_count=2",
                                             "default_table.eviction.unused_steps=3"},
                    std::vector<std::string>{"default_table.eviction.max_rows=60"},
                    std::vector<std::string>{"default_table.min_count=2",
                                             "default_table.eviction.unused_steps=6",
                                             "default_table.eviction.max_rows=40"}),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

// A table beside them that has neither rule is held all the same.
TEST(AdmissionOfOneTableTest, ACacheHoldsTheOtherTables) {
  const std::vector<std::vector<std::string>> rules = {
      {"default_table.min_count=3", "table[0].settings.min_count=1"},
      {"table[0].settings.eviction.unused_steps=2"},
      {"table[0].settings.eviction.max_rows=50"}};
  for (const std::vector<std::string>& rule : rules) {
    const Job job = MakeSmallJob("adagrad {}", rule);
    const Outcome cached = Train(WithCache(job, "64KiB", 4, 2));
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_EQ(Hex(cached.digest), Hex(Train(job).digest)) << rule[0];
    EXPECT_GT(cached.workers[0]->stats.cache().loaded(), 0u) << rule[0];
  }
}

TEST(TrainingTest, EvaluationScoresEveryHeldOutRowOnRankZeroAlone) {
  const Outcome outcome =
      Train(MakeSmallJob("adagrad {}", {"cluster.workers=2", "cluster.servers=2"}));
  ASSERT_TRUE(outcome.workers[0].ok() && outcome.workers[1].ok());
  EXPECT_EQ(outcome.workers[0]->evaluation.samples, 300);
  EXPECT_GT(outcome.workers[0]->evaluation.logloss, 0.5);  // The labels are coin flips.
  EXPECT_LT(outcome.workers[0]->evaluation.logloss, 1.5);
  EXPECT_EQ(outcome.workers[1]->evaluation.samples, 0);
  EXPECT_EQ(outcome.workers[0]->samples + outcome.workers[1]->samples, 1200u);
  EXPECT_EQ(outcome.workers[0]->steps, 12);
}

TEST(TrainingTest, BoundedStalenessTrainsEveryStepOnce) {
  for (int workers : {1, 3}) {
    const Job job = MakeSmallJob("sgd {}", {"cluster.workers=" + std::to_string(workers),
                                            "cluster.servers=2", "train.staleness_steps=2"});
    const Outcome outcome = Train(job);
    uint64_t samples = 0;
    for (const auto& worker : outcome.workers) {
      ASSERT_TRUE(worker.ok());
      EXPECT_EQ(worker->steps, 12);
      samples += worker->samples;
    }
    EXPECT_EQ(samples, 1200u);
  }
}

// The rows that it fetches ahead lack its own last pushes.
TEST(TrainingTest, OneWorkerIsStaleToo) {
  for (const int bound : {0, 2}) {
    const Job job = MakeSmallJob(
        "sgd {}", {"cluster.servers=2", "train.staleness_steps=" + std::to_string(bound)});
    const Outcome outcome = Train(job);
    ASSERT_TRUE(outcome.workers[0].ok());
    EXPECT_EQ(outcome.workers[0]->stats.max_staleness(), static_cast<uint64_t>(bound));
  }
}

// One worker and one server; the state that a failed worker leaves.
struct FailedRun {
  absl::Status status;
  ServerStats server;
};

FailedRun TrainToFailure(const Job& job) {
  ThreadScheduler scheduler;
  ServerCore core(ServerLimits{}, &scheduler);
  EXPECT_TRUE(core.Configure(ConfigOf(job, 0)).ok());
  InProcessTransport transport({&core});
  WorkerProgress progress(kSmallJobId, WorkerRank(0), /*fd=*/-1);
  FailedRun run;
  run.status = RunWorker(job, {kSmallJobId, kSmallJobGeneration, WorkerRank(0)}, &transport,
                         &scheduler, &progress)
                   .status();
  EXPECT_FALSE(IsServerLoss(run.status)) << run.status;
  core.FillStats(&run.server);
  core.Shutdown();
  return run;
}

// Rank 0 runs ahead of rank 1 as far as the bound lets it, and not a step further.
TEST(TrainingTest, WorkersMeasureTheirStaleness) {
  for (const int bound : {0, 1, 3}) {
    const Job job = MakeSmallJob("sgd {}", {"cluster.workers=2", "cluster.servers=2",
                                            "train.staleness_steps=" + std::to_string(bound)});
    const Outcome outcome = Train(job, /*held_back_until=*/Step(bound));
    ASSERT_TRUE(outcome.workers[0].ok() && outcome.workers[1].ok());
    const WorkerStats& fast = outcome.workers[0]->stats;
    EXPECT_EQ(fast.max_staleness(), static_cast<uint64_t>(bound));
    EXPECT_LE(fast.mean_staleness(), fast.max_staleness());
    EXPECT_EQ(fast.mean_staleness() > 0, bound > 0);
    EXPECT_LE(outcome.workers[1]->stats.max_staleness(), static_cast<uint64_t>(bound));
  }
}

TEST(TrainingTest, AnExplodingLossEndsTheJobBeforeItIsPushed) {
  const FailedRun run = TrainToFailure(MakeSmallJob("sgd {}", {"train.learning_rate.base=1e30"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument) << run.status;
  int step = -1;
  ASSERT_EQ(sscanf(std::string(run.status.message()).c_str(), "step %d: the loss is", &step), 1)
      << run.status;
  EXPECT_GT(step, 0);
  EXPECT_EQ(run.server.complete_through(), step - 1);
  EXPECT_EQ(run.server.pushes_accepted(), static_cast<uint64_t>(step));
}

TEST(TrainingTest, EveryStepBeforeABadLineIsTrained) {
  constexpr int64_t kBadStep = 8;
  const Job whole = MakeSmallJob("sgd {}", {});
  std::ifstream lines(whole.data().path());
  const std::string path = testing::TempDir() + "/bad_line.tsv";
  std::ofstream bad(path);
  std::string line;
  for (int64_t row = 0; std::getline(lines, line); ++row) {
    bad << (row == 100 * kBadStep + 50 ? "this is no click" : line) << '\n';
  }
  bad.close();
  const Job job = MakeSmallJob("sgd {}", {"data.path='" + path + "'"});
  // With a cache the steps before are fetched when the pipeline comes to the line.
  for (const Job& kind : {job, WithCache(job, "64KiB", 1, 0), WithCache(job, "64KiB", 4, 3)}) {
    const FailedRun run = TrainToFailure(kind);
    EXPECT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument) << run.status;
    EXPECT_EQ(run.server.complete_through(), kBadStep - 1);
  }
}

TEST(TrainingTest, AModelThatCannotScoreIsAnError) {
  const FailedRun run = TrainToFailure(
      MakeSmallJob("sgd {}", {"train.learning_rate.base=1e38", "train.learning_rate.warmup_steps=0",
                              "train.max_steps=1"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument) << run.status;
  EXPECT_NE(run.status.message().find("for held-out sample 0 "), absl::string_view::npos)
      << run.status;
}

TEST(TrainingTest, DataWithoutARowIsNamed) {
  const FailedRun run = TrainToFailure(MakeSmallJob("sgd {}", {"data.test_share=0.9999"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kFailedPrecondition) << run.status;
  EXPECT_NE(run.status.message().find("clicks.tsv' has not a single row to train on; "
                                      "data.test_share 0.9999 of them is held out"),
            absl::string_view::npos)
      << run.status;
  EXPECT_EQ(run.server.pushes_accepted(), 0u);
}

}  // namespace
}  // namespace thermocline
