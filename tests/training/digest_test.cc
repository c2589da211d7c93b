// The promise of reproducibility (docs/architecture.md): the trained model has the same bits for
// any number of servers and threads, on every run, and those of the reference trainer.
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/job/job_loader.h"
#include "common/job/job_tables.h"
#include "common/scheduler.h"
#include "gtest/gtest.h"
#include "server/core/server_core.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/reference_trainer.h"
#include "worker/worker.h"

namespace thermocline {
namespace {

constexpr char kJobId[] = "digest";
constexpr uint64_t kEpoch = 7;

// Three features over two tables, bags of 0 to 3 lookups, ids skewed so that keys repeat.
std::string WriteClickLog(int rows) {
  const std::string path = testing::TempDir() + "/clicks.tsv";
  std::ofstream file(path);
  std::mt19937 random(5);
  const auto key = [&] { return (random() % 40) * (random() % 40); };
  for (int i = 0; i < rows; ++i) {
    file << random() % 2 << '\t' << random() % 100 << '\t';
    if (random() % 4 != 0) file << random() % 1000;
    for (int feature = 0; feature < 3; ++feature) {
      file << '\t';
      const int lookups = random() % 4;
      for (int j = 0; j < lookups; ++j) file << (j > 0 ? "," : "") << std::hex << key() << std::dec;
    }
    file << '\n';
  }
  return path;
}

Job MakeJob(const std::string& optimizer, const std::vector<std::string>& overrides) {
  const std::string text = R"(
    name: "digest" seed: 11
    data { format: CRITEO_TSV path: ")" +
                           WriteClickLog(1500) + R"(" test_share: 0.2 num_dense: 2 }
    default_table { dim: 8 optimizer { )" +
                           optimizer + R"( } }
    table { name: "shared" }
    feature { name: "a" }
    feature { name: "b" table: "shared" pooling: MEAN }
    feature { name: "c" table: "shared" }
    dlrm { bottom: [24, 12] top: [40, 16] }
    train { batch_size: 100 learning_rate { base: 0.05 warmup_steps: 4 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )";
  absl::StatusOr<Job> job = ParseJob(text, "digest.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

ServerConfig ConfigOf(const Job& job, uint32_t index) {
  ServerConfig config;
  config.job_id = kJobId;
  config.epoch = kEpoch;
  config.server_index = ServerIndex(index);
  config.num_servers = job.cluster().servers();
  config.num_workers = job.cluster().workers();
  config.seed = job.seed();
  config.staleness_steps = job.train().staleness_steps();
  config.tables = ResolveTables(job).AllLayouts();
  return config;
}

struct Outcome {
  Digest digest;
  uint64_t rows = 0;
  std::vector<absl::StatusOr<WorkerResult>> workers;
};

// Keeps rank 1's pushes back until rank 0 pushes `step`; nothing where that is kNoStep.
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
      if (fast && call.last_step >= step_) open_ = true;
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

// The whole system in one process, but for gRPC. `held_back_until`: as SlowRankTransport.
Outcome Train(const Job& job, Step held_back_until = kNoStep) {
  ThreadScheduler scheduler;
  std::vector<std::unique_ptr<ServerCore>> cores;
  std::vector<ServerCore*> pointers;
  for (uint32_t i = 0; i < job.cluster().servers(); ++i) {
    ServerLimits limits;
    limits.apply_threads = 1 + i % 2;
    cores.push_back(std::make_unique<ServerCore>(limits, &scheduler));
    EXPECT_TRUE(cores.back()->Configure(ConfigOf(job, i)).ok());
    pointers.push_back(cores.back().get());
  }
  InProcessTransport in_process(pointers);
  SlowRankTransport transport(&in_process, held_back_until);
  Outcome outcome;
  outcome.workers.resize(job.cluster().workers(), absl::UnknownError("never ran"));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < job.cluster().workers(); ++rank) {
    threads.emplace_back([&, rank] {
      WorkerProgress progress(kJobId, WorkerRank(rank), /*fd=*/-1);
      outcome.workers[rank] =
          RunWorker(job, {kJobId, kEpoch, WorkerRank(rank)}, &transport, &scheduler, &progress);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::StatusOr<WorkerResult>& worker : outcome.workers) {
    EXPECT_TRUE(worker.ok()) << worker.status();
  }
  for (ServerCore* core : pointers) {
    // No thread applies any more: the answer comes at once.
    core->ComputeDigest(kJobId, kEpoch, [&](absl::StatusOr<ServerCore::DigestAnswer> answer) {
      ASSERT_TRUE(answer.ok()) << answer.status();
      outcome.digest.Add(answer->digest);
      outcome.rows += answer->rows;
    });
  }
  for (ServerCore* core : pointers) core->Shutdown();
  return outcome;
}

std::string Hex(const Digest& digest) {
  char text[40];
  snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(digest.high),
           static_cast<unsigned long long>(digest.low));
  return text;
}

std::string ReferenceDigest(const Job& job) {
  const absl::StatusOr<ReferenceResult> reference = TrainReference(job);
  EXPECT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(reference->steps, 12);
  return Hex(reference->digest);
}

class DigestTest : public testing::TestWithParam<const char*> {};

TEST_P(DigestTest, OneWorkerGivesTheReferencesBitsForAnyServersAndThreads) {
  const std::string reference = ReferenceDigest(MakeJob(GetParam(), {}));
  for (int servers : {1, 2, 4}) {
    for (int threads : {1, 2, 4}) {
      const Job job = MakeJob(GetParam(), {"cluster.servers=" + std::to_string(servers),
                                           "cluster.worker_threads=" + std::to_string(threads)});
      EXPECT_EQ(Hex(Train(job).digest), reference) << servers << " servers, " << threads;
    }
  }
}

TEST_P(DigestTest, TwoWorkersInSyncGiveTheReferencesBitsOnEveryRun) {
  const std::string reference = ReferenceDigest(MakeJob(GetParam(), {"cluster.workers=2"}));
  EXPECT_NE(reference, ReferenceDigest(MakeJob(GetParam(), {})));  // Other sums, other rounding.
  for (int run = 0; run < 3; ++run) {
    const Job job =
        MakeJob(GetParam(), {"cluster.workers=2", "cluster.servers=" + std::to_string(1 + run)});
    EXPECT_EQ(Hex(Train(job).digest), reference) << run;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, DigestTest,
    testing::Values("sgd {}", "adagrad {}", "row_wise_adagrad {}", "adam {}"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find(' '));
    });

TEST(TrainingTest, EvaluationScoresEveryHeldOutRowOnRankZeroAlone) {
  const Outcome outcome = Train(MakeJob("adagrad {}", {"cluster.workers=2", "cluster.servers=2"}));
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
    const Job job = MakeJob("sgd {}", {"cluster.workers=" + std::to_string(workers),
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

// One worker and one server; what a worker that fails has left behind.
struct FailedRun {
  absl::Status status;
  ServerStats server;
};

FailedRun TrainToFailure(const Job& job) {
  ThreadScheduler scheduler;
  ServerCore core(ServerLimits{}, &scheduler);
  EXPECT_TRUE(core.Configure(ConfigOf(job, 0)).ok());
  InProcessTransport transport({&core});
  WorkerProgress progress(kJobId, WorkerRank(0), /*fd=*/-1);
  FailedRun run;
  run.status =
      RunWorker(job, {kJobId, kEpoch, WorkerRank(0)}, &transport, &scheduler, &progress).status();
  core.FillStats(&run.server);
  core.Shutdown();
  return run;
}

// Rank 0 runs ahead of rank 1 as far as the bound lets it, and not a step further.
TEST(TrainingTest, WorkersMeasureTheirStaleness) {
  for (const int bound : {0, 1, 3}) {
    const Job job = MakeJob("sgd {}", {"cluster.workers=2", "cluster.servers=2",
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
  const FailedRun run = TrainToFailure(MakeJob("sgd {}", {"train.learning_rate.base=1e30"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument) << run.status;
  int step = -1;
  ASSERT_EQ(sscanf(std::string(run.status.message()).c_str(), "step %d: the loss is", &step), 1)
      << run.status;
  EXPECT_GT(step, 0);
  EXPECT_EQ(run.server.complete_through(), step - 1);
  EXPECT_EQ(run.server.pushes_accepted(), static_cast<uint64_t>(step));
}

TEST(TrainingTest, AModelThatCannotScoreIsAnError) {
  const FailedRun run = TrainToFailure(
      MakeJob("sgd {}", {"train.learning_rate.base=1e38", "train.learning_rate.warmup_steps=0",
                         "train.max_steps=1"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument) << run.status;
  EXPECT_NE(run.status.message().find("for held-out sample 0 "), absl::string_view::npos)
      << run.status;
}

TEST(TrainingTest, DataWithoutARowIsNamed) {
  const FailedRun run = TrainToFailure(MakeJob("sgd {}", {"data.test_share=0.9999"}));
  ASSERT_EQ(run.status.code(), absl::StatusCode::kFailedPrecondition) << run.status;
  EXPECT_NE(run.status.message().find("clicks.tsv' has not a single row to train on; "
                                      "data.test_share 0.9999 of them is held out"),
            absl::string_view::npos)
      << run.status;
  EXPECT_EQ(run.server.pushes_accepted(), 0u);
}

}  // namespace
}  // namespace thermocline
