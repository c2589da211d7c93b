// A worker with a cache trains the same bits as one without, for any budget and window, with
// checkpoints, resumes and slow servers.
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

struct CacheShape {
  std::string budget;
  int window_steps;
  int prefetch_steps;
};

// From hardly more rows than one batch needs to all rows.
std::vector<CacheShape> Shapes() {
  std::vector<CacheShape> shapes;
  for (const char* budget : {"29000B", "32KiB", "64KiB", "1MiB"}) {
    shapes.push_back({budget, 1, 0});
    shapes.push_back({budget, 3, 2});
    shapes.push_back({budget, 20, 6});
  }
  return shapes;
}

Job WithCache(Job job, const CacheShape& shape) {
  return WithCache(std::move(job), shape.budget, shape.window_steps, shape.prefetch_steps);
}

std::string Name(const CacheShape& shape) {
  return absl::StrCat("budget ", shape.budget, ", window ", shape.window_steps, ", prefetch ",
                      shape.prefetch_steps);
}

Outcome Train(const Job& job, WorkerOptions options = {}) {
  JobServers servers(job);
  return RunWorkers(job, &servers, options);
}

class CacheTest : public testing::TestWithParam<const char*> {};

TEST_P(CacheTest, GivesTheBitsOfNoCache) {
  CaseChoice cases;
  uint64_t hits = 0, evicted = 0, rejected_no_room = 0;
  for (const char* servers : {"cluster.servers=1", "cluster.servers=3"}) {
    const Job job = MakeSmallJob(GetParam(), {servers, "train.passes=2"});
    const Outcome uncached = Train(job);
    for (const CacheShape& shape : Shapes()) {
      if (!cases.TakesNext()) continue;
      SCOPED_TRACE(Name(shape));
      const Outcome cached = Train(WithCache(job, shape));
      ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
      EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
      EXPECT_EQ(cached.rows, uncached.rows);
      EXPECT_EQ(cached.workers[0]->evaluation.auc, uncached.workers[0]->evaluation.auc);
      EXPECT_EQ(cached.workers[0]->stats.max_staleness(), 0u);
      const CacheStats& cache = cached.workers[0]->stats.cache();
      EXPECT_LE(cache.rows_held(), cache.capacity_rows());
      hits += cache.hits();
      evicted += cache.evicted();
      rejected_no_room += cache.rejected_no_room();
    }
  }
  // Every path was taken.
  EXPECT_GT(hits, 0u);
  EXPECT_GT(evicted, 0u);
  EXPECT_GT(rejected_no_room, 0u);
}

TEST_P(CacheTest, MayWriteRowsBackWhileTheyAreHeld) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "train.passes=2"});
  const Outcome uncached = Train(job);
  CaseChoice cases;
  for (const CacheShape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    uint64_t written_ahead = 0;
    for (const uint64_t most_bytes : {0, 1000}) {
      SCOPED_TRACE(absl::StrCat(Name(shape), ", at most ", most_bytes, " bytes unwritten"));
      WorkerOptions options;
      options.max_unwritten_bytes = most_bytes;
      const Outcome cached = Train(WithCache(job, shape), options);
      ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
      EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
      EXPECT_EQ(cached.rows, uncached.rows);
      written_ahead += cached.workers[0]->stats.cache().written_ahead();
    }
    EXPECT_GT(written_ahead, 0u) << Name(shape);
  }
}

// A server refuses a step whose push is larger than cluster.max_pending_size. So the rows that are
// newer than their server's are at most a quarter of that, and the push of the last step, which
// writes them back, fits.
TEST(CacheLimitTest, WritesBackNoMoreThanServersTake) {
  const Job job = MakeSmallJob("sgd {}", {"default_table.dim=32", "train.batch_size=50"});
  Job cached = WithCache(job, {"1MiB", 3, 2});
  cached.mutable_cluster()->set_max_pending_size("96KiB");  // Less than a job file may say.
  WorkerOptions unbounded;
  unbounded.max_unwritten_bytes = uint64_t{1} << 30;
  const absl::Status refused = StatusOfRun(cached, unbounded);
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "cluster.max_pending_size")) << refused;
  const Outcome bounded = Train(cached);
  ASSERT_TRUE(bounded.workers[0].ok()) << bounded.workers[0].status();
  EXPECT_GT(bounded.workers[0]->stats.cache().written_ahead(), 0u);
  EXPECT_EQ(Hex(bounded.digest), Hex(Train(job).digest));
}

// Drops the chunks of one step's push, once, as a restarted server would.
class ForgettingTransport : public Transport {
 public:
  ForgettingTransport(const JobServers* servers, Step step)
      : in_process_(servers->cores()), step_(step) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    in_process_.Pull(server, call, deadline_us, std::move(done));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    if (call.step == step_ && forgotten_ < call.num_chunks) {
      ++forgotten_;
      done(wire::PushAnswer{wire::Readiness::kReady, step_ - 1});
      return;
    }
    in_process_.Push(server, call, deadline_us, std::move(done));
  }
  void Close() override {}

  uint32_t forgotten() const { return forgotten_; }

 private:
  InProcessTransport in_process_;
  const Step step_;
  std::atomic<uint32_t> forgotten_{0};
};

// More pieces than are held at a time: they are gathered while others are on their way, and again
// where a server has lost them.
TEST_P(CacheTest, WritesBackInPieces) {
  const Job job = MakeSmallJob(GetParam(), {"checkpoint.every_steps=5"});
  const Outcome uncached = Train(job);
  WorkerOptions options;
  options.write_back_piece_bytes = 500;
  uint32_t most_forgotten = 0;
  CaseChoice cases;
  for (const CacheShape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    const Job cached = WithCache(job, shape);
    const Outcome whole = Train(cached, options);
    ASSERT_TRUE(whole.workers[0].ok()) << whole.workers[0].status();
    EXPECT_EQ(Hex(whole.digest), Hex(uncached.digest));
    JobServers servers(cached);
    ForgettingTransport transport(&servers, /*step=*/Step(9));
    const Outcome repeated = RunWorkers(cached, &servers, options, &transport);
    ASSERT_TRUE(repeated.workers[0].ok()) << repeated.workers[0].status();
    most_forgotten = std::max(most_forgotten, transport.forgotten());
    EXPECT_EQ(Hex(repeated.digest), Hex(uncached.digest));
  }
  EXPECT_GT(most_forgotten, 10u) << "no checkpoint had more parts than pieces are held at a time";
}

TEST_P(CacheTest, ResumesWithTheBitsOfNoCache) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "train.passes=2"});
  const Outcome uncached = Train(job);
  CaseChoice cases;
  for (const CacheShape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    const Job cached = WithCache(job, shape);
    for (const int64_t step : {1, 13}) {
      SCOPED_TRACE(absl::StrCat(Name(shape), ", resumed at ", step));
      JobServers servers(cached);
      Job first = cached;
      first.mutable_train()->set_max_steps(step);
      RunWorkers(first, &servers);
      WorkerOptions options;
      options.start_step = Step(step);
      EXPECT_EQ(Hex(RunWorkers(cached, &servers, options).digest), Hex(uncached.digest));
    }
  }
}

TEST_P(CacheTest, ACutLeavesTheWholeModelOnTheServers) {
  const Job plain = MakeSmallJob(GetParam(), {"checkpoint.every_steps=5"});
  std::map<int64_t, std::string> expected;
  for (const int64_t step : {4, 7, 9, 11}) {
    Job ending = plain;
    ending.mutable_train()->set_max_steps(step + 1);
    expected[step] = Hex(Train(ending).digest);
  }
  CaseChoice cases;
  for (const CacheShape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    const Job job = WithCache(plain, shape);
    JobServers servers(job);
    NamedCheckpoints checkpoints(Step(0));
    ASSERT_TRUE(checkpoints.Name(Step(7)).ok());
    WriteBackWatch watch(&servers, [](Step) {});
    WorkerOptions options;
    options.named_checkpoints = &checkpoints;
    RunWorkers(job, &servers, options, &watch);
    for (const auto& [step, digest] : expected) {
      EXPECT_EQ(watch.digests().at(step), digest) << "checkpoint of step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CacheTest, testing::ValuesIn(kOptimizers), NameOfOptimizer);

// Calls arrive late, and answers come later still.
class SlowTransport : public Transport {
 public:
  SlowTransport(const JobServers* servers, Scheduler* scheduler, uint64_t seed)
      : scheduler_(scheduler), direct_(servers->cores()), random_(seed) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    scheduler_->RunAfter(Delay(), [this, server, call, deadline_us, done] {
      direct_.Pull(server, call, deadline_us, Late<wire::PullAnswer>(done));
    });
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    scheduler_->RunAfter(Delay(), [this, server, call, deadline_us, done] {
      direct_.Push(server, call, deadline_us, Late<wire::PushAnswer>(done));
    });
  }
  void Close() override {}

 private:
  template <typename Answer>
  std::function<void(absl::StatusOr<Answer>)> Late(
      std::function<void(absl::StatusOr<Answer>)> done) {
    return [this, done](absl::StatusOr<Answer> answer) {
      scheduler_->RunAfter(Delay(), [done, answer] { done(answer); });
    };
  }
  int64_t Delay() {
    absl::MutexLock lock(&mutex_);
    return random_() % 4 == 0 ? 0 : static_cast<int64_t>(random_() % 3000);
  }

  Scheduler* const scheduler_;
  InProcessTransport direct_;
  absl::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
};

TEST(CacheOrderTest, SlowServersChangeNothing) {
  const uint64_t seed = TestSeed();
  const Job job = MakeSmallJob("adagrad {}", {"cluster.servers=3", "train.passes=3"});
  const Outcome uncached = Train(job);
  CaseChoice cases;
  for (const CacheShape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    const Job cached = WithCache(job, shape);
    JobServers servers(cached);
    SlowTransport slow(&servers, servers.scheduler(), seed);
    EXPECT_EQ(Hex(RunWorkers(cached, &servers, {}, &slow).digest), Hex(uncached.digest));
  }
}

TEST(CacheErrorTest, ABudgetThatCannotHoldABatchSaysWhatIsNeeded) {
  const absl::Status status =
      StatusOfRun(WithCache(MakeSmallJob("adagrad {}", {}), {"1KiB", 8, 2}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(
      status.message(),
      "cache.budget is 1024 bytes; at least 19264 are needed, for the rows of one "
      "batch and one more: 300 + 1 rows of 64 bytes for 2 tables like 'a'"))
      << status;
}

TEST(CacheErrorTest, ABudgetBeyondWhatThereIsSaysSo) {
  const Job job = MakeSmallJob("adagrad {}", {});
  const absl::Status status = StatusOfRun(WithCache(job, {"1024TiB", 8, 2}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "this machine has")) << status;
}

}  // namespace
}  // namespace thermocline
