// Several workers with one cache train the bits of as many without one: for any number of them, any
// budget and window, with checkpoints, resumes, slow servers, and tables that no worker holds.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

struct Shape {
  int workers;
  int64_t more_bytes;  // How much more budget each worker has than it needs.
  int window_steps;
  int prefetch_steps;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const int workers : {2, 3, 5, 8}) {
    for (const int64_t more_bytes : {0, 6000 / workers, 1 << 20}) {
      shapes.push_back({workers, more_bytes, 1, 0});
      shapes.push_back({workers, more_bytes, 3, 2});
      shapes.push_back({workers, more_bytes, 8, 4});
    }
  }
  return shapes;
}

std::string Name(const Shape& shape) {
  return absl::StrCat(shape.workers, " workers, ", shape.more_bytes, " bytes more, window ",
                      shape.window_steps, ", prefetch ", shape.prefetch_steps);
}

// Rows have 8 floats, and there are three columns and two groups of tables.
Job WithCache(Job job, const Shape& shape) {
  const int64_t slice = (int64_t{job.train().batch_size()} + shape.workers - 1) / shape.workers;
  const int64_t least_bytes = 3 * slice * 3 * 32 + 2 * 96;
  return WithCache(std::move(job), absl::StrCat(least_bytes + shape.more_bytes, "B"),
                   shape.window_steps, shape.prefetch_steps);
}

Outcome Train(const Job& job, const WorkerOptions& options = {}, int64_t steps = 0) {
  JobServers servers(job);
  Job ending = job;
  if (steps > 0) ending.mutable_train()->set_max_steps(steps);
  return RunWorkers(ending, &servers, options);
}

// Both tables have an optimizer of their own. The last step has 3 rows: some workers have none.
Job MakeJob(int workers, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(),
                   {absl::StrCat("cluster.workers=", workers), "data.test_share=0.198",
                    "table[0].settings.optimizer={adam {}}"});
  return MakeSmallJob("adagrad {}", overrides);
}

// The digests without a cache, by number of workers.
class Uncached {
 public:
  explicit Uncached(std::function<Job(int workers)> make_job) : make_job_(std::move(make_job)) {}

  const Outcome& Of(int workers) {
    auto found = outcomes_.find(workers);
    if (found == outcomes_.end()) {
      found = outcomes_.emplace(workers, Train(make_job_(workers))).first;
    }
    return found->second;
  }

 private:
  const std::function<Job(int)> make_job_;
  std::map<int, Outcome> outcomes_;
};

struct Totals {
  uint64_t hits = 0, bypassed = 0, evicted = 0, rejected_no_room = 0, written_ahead = 0;

  void Add(const Outcome& outcome) {
    for (const auto& worker : outcome.workers) {
      const CacheStats& cache = worker->stats.cache();
      EXPECT_LE(cache.rows_held(), cache.capacity_rows());
      hits += cache.hits();
      bypassed += cache.bypassed();
      evicted += cache.evicted();
      rejected_no_room += cache.rejected_no_room();
      written_ahead += cache.written_ahead();
    }
  }
};

void ExpectSame(const Outcome& cached, const Outcome& uncached) {
  for (const auto& worker : cached.workers) {
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ(worker->stats.max_staleness(), 0u);
  }
  EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
  EXPECT_EQ(cached.rows, uncached.rows);
  EXPECT_EQ(cached.workers[0]->steps, uncached.workers[0]->steps);
  EXPECT_EQ(cached.workers[0]->evaluation.logloss, uncached.workers[0]->evaluation.logloss);
}

TEST(SharedCacheTest, GivesTheBitsOfNoCache) {
  const auto job = [](int workers) { return MakeJob(workers, {"cluster.servers=2"}); };
  Uncached uncached(job);
  Totals totals;
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    const Outcome cached = Train(WithCache(job(shape.workers), shape));
    ExpectSame(cached, uncached.Of(shape.workers));
    if (HasFailure()) return;
    EXPECT_EQ(cached.workers[0]->steps, 13);
    totals.Add(cached);
  }
  // Every path was taken.
  EXPECT_GT(totals.hits, 0u);
  EXPECT_GT(totals.bypassed, 0u);
  EXPECT_GT(totals.evicted, 0u);
  EXPECT_GT(totals.rejected_no_room, 0u);
}

// Checkpoints, in pieces that are more than are held at a time; rows written back while they are
// held.
TEST(SharedCacheTest, WritesRowsBackAmidTheRun) {
  const auto job = [](int workers) {
    return MakeJob(workers, {"cluster.servers=3", "checkpoint.every_steps=4"});
  };
  Uncached uncached(job);
  Totals totals;
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    WorkerOptions options;
    options.max_unwritten_bytes = shape.window_steps == 3 ? 0 : 1000;
    options.write_back_piece_bytes = 500;
    const Outcome cached = Train(WithCache(job(shape.workers), shape), options);
    ExpectSame(cached, uncached.Of(shape.workers));
    if (HasFailure()) return;
    totals.Add(cached);
  }
  EXPECT_GT(totals.written_ahead, 0u);
}

TEST(SharedCacheTest, ResumesWithTheBitsOfNoCache) {
  const auto job = [](int workers) { return MakeJob(workers, {"cluster.servers=2"}); };
  Uncached uncached(job);
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    if (shape.window_steps == 1 || !cases.TakesNext()) continue;
    SCOPED_TRACE(Name(shape));
    const Job cached = WithCache(job(shape.workers), shape);
    const int64_t step = shape.window_steps;
    JobServers servers(cached);
    Job first = cached;
    first.mutable_train()->set_max_steps(step);
    RunWorkers(first, &servers);
    WorkerOptions options;
    options.start_step = Step(step);
    ExpectSame(RunWorkers(cached, &servers, options), uncached.Of(shape.workers));
  }
}

// Evaluations come in the midst of the run, behind a write-back.
TEST(SharedCacheTest, EvaluationsChangeNoBit) {
  for (const Shape& shape : {Shape{3, 2000, 3, 2}, Shape{2, 1 << 20, 8, 4}}) {
    SCOPED_TRACE(Name(shape));
    Job job = MakeJob(shape.workers, {"cluster.servers=2"});
    const Outcome without = Train(job);
    job.mutable_evaluate()->set_every_steps(5);
    ExpectSame(Train(WithCache(job, shape)), without);
  }
}

// Servers alone decide which keys of such a table have a row. The other table is held all the same.
TEST(SharedCacheTest, TablesThatServersDecideOnAreNotShared) {
  const std::vector<std::vector<std::string>> rules = {
      {"table[0].settings.min_count=3"},
      {"table[0].settings.eviction.unused_steps=2"},
      {"table[0].settings.eviction.max_rows=50"},
      {"default_table.min_count=2", "default_table.eviction.max_rows=60"}};
  for (const std::vector<std::string>& rule : rules) {
    std::vector<std::string> overrides = rule;
    overrides.push_back("cluster.servers=2");
    const auto job = [&](int workers) { return MakeJob(workers, overrides); };
    Uncached uncached(job);
    Totals totals;
    std::vector<Shape> shapes = {{2, 4000, 4, 2}, {3, 1 << 20, 8, 4}, {5, 0, 1, 0}};
    if (kIsSanitized) shapes = {shapes[1]};
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(absl::StrCat(rule[0], ", ", Name(shape)));
      const Outcome cached = Train(WithCache(job(shape.workers), shape));
      ExpectSame(cached, uncached.Of(shape.workers));
      if (HasFailure()) return;
      totals.Add(cached);
    }
    EXPECT_EQ(totals.hits > 0, rule.size() == 1) << rule[0];
  }
}

TEST(SharedCacheTest, WeightedListsKeepTheBits) {
  for (const int workers : {2, 3}) {
    const Job job = MakeWeightedJob(
        "adagrad {}", {"cluster.servers=2", absl::StrCat("cluster.workers=", workers)});
    const Outcome cached = Train(WithCache(job, "64KiB", 3, 2));
    ExpectSame(cached, Train(job));
    Totals totals;
    totals.Add(cached);
    EXPECT_GT(totals.hits, 0u);
  }
}

TEST(SharedCacheTest, ABudgetThatCannotHoldABatchSaysWhoNeedsWhat) {
  const Job job = WithCache(MakeJob(2), "1KiB", 3, 2);
  WorkerOptions options;
  options.make_exchange = [](const ExchangeOptions&, ExchangeHooks) {
    return absl::InternalError("no budget, no exchange");
  };
  const absl::Status status = StatusOfRun(job, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StartsWith(
      status.message(),
      "cache.budget is 1024 bytes; at least 14560 are needed by each worker, for the rows of its "
      "batch, for those that it sends other workers, their gradients, and one more that it holds: "
      "3 x 50 rows of 32 bytes and one of 64 for 1 table like 'a', "))
      << status;
}

}  // namespace
}  // namespace thermocline
