// A worker whose cache holds the rows that are used most over all of the data trains the same bits
// as one without a cache.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/small_job.h"
#include "tests/training/static_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

// Hardly any key has so many lookups; some have; all have.
constexpr int kLeastLookups[] = {100'000, 6, 1};

Outcome TrainStatic(const Job& job, WorkerOptions options = {}) {
  JobServers servers(job);
  return RunWorkers(job, &servers, options);
}

class StaticCacheTest : public testing::TestWithParam<const char*> {};

TEST_P(StaticCacheTest, GivesTheBitsOfNoCache) {
  std::vector<std::string> clusters = {"cluster.servers=3", "cluster.servers=1"};
  if (kIsSanitized) clusters.pop_back();
  for (const std::string& servers : clusters) {
    const Job job =
        MakeSmallJob(GetParam(), {servers, "train.passes=2", "checkpoint.every_steps=5"});
    const Outcome uncached = TrainStatic(job);
    std::vector<uint64_t> held, bypassed;
    for (const int least_lookups : kLeastLookups) {
      for (const int prefetch : {0, 2}) {
        SCOPED_TRACE(absl::StrCat("keys of ", least_lookups, " lookups, prefetch ", prefetch));
        const Outcome cached =
            TrainStatic(WithStaticCache(job, "1MiB", 3, prefetch, least_lookups));
        ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
        EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
        EXPECT_EQ(cached.rows, uncached.rows);
        EXPECT_EQ(cached.workers[0]->evaluation.auc, uncached.workers[0]->evaluation.auc);
        const CacheStats& cache = cached.workers[0]->stats.cache();
        EXPECT_EQ(cache.evicted(), 0u);
        EXPECT_EQ(cache.loaded(), cache.rows_held());  // Each row was loaded once.
        held.push_back(cache.rows_held());
        bypassed.push_back(cache.bypassed());
      }
    }
    EXPECT_EQ(held[0], 0u);
    EXPECT_GT(held[2], 0u);
    EXPECT_GT(bypassed[2], 0u);
    EXPECT_LT(bypassed[2], bypassed[0]);
    EXPECT_EQ(bypassed[4], 0u);
  }
}

TEST_P(StaticCacheTest, ResumesAndWritesRowsBackEarly) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2", "train.passes=2"});
  const Outcome uncached = TrainStatic(job);
  const Job with_cache = WithStaticCache(job, "1MiB", 4, 1, /*least_lookups=*/6);
  JobServers servers(with_cache);
  WorkerOptions options;
  options.max_unwritten_bytes = 500;
  options.write_back_piece_bytes = 300;
  Job first = with_cache;
  first.mutable_train()->set_max_steps(7);
  const Outcome begun = RunWorkers(first, &servers, options);
  ASSERT_TRUE(begun.workers[0].ok()) << begun.workers[0].status();
  EXPECT_GT(begun.workers[0]->stats.cache().written_ahead(), 0u);
  options.start_step = Step(7);
  const Outcome resumed = RunWorkers(with_cache, &servers, options);
  ASSERT_TRUE(resumed.workers[0].ok()) << resumed.workers[0].status();
  EXPECT_EQ(Hex(resumed.digest), Hex(uncached.digest));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StaticCacheTest, testing::ValuesIn(kOptimizers),
                         NameOfOptimizer);

TEST(StaticCacheRulesTest, TablesWhoseRowsTheServersChooseAreNotHeld) {
  for (const std::vector<std::string>& rules :
       {std::vector<std::string>{"default_table.min_count=3"},
        std::vector<std::string>{"table[0].settings.eviction.unused_steps=2"},
        std::vector<std::string>{"default_table.min_count=2",
                                 "default_table.eviction.max_rows=40"}}) {
    const Job job = MakeSmallJob("adagrad {}", rules);
    const Outcome cached = TrainStatic(WithStaticCache(job, "1MiB", 4, 2, /*least_lookups=*/2));
    ASSERT_TRUE(cached.workers[0].ok()) << cached.workers[0].status();
    EXPECT_EQ(Hex(cached.digest), Hex(TrainStatic(job).digest));
  }
}

TEST(StaticCacheRulesTest, HotRowsMustFitBesideTheRowsOfABatch) {
  const Job job = MakeSmallJob("adagrad {}", {});
  const absl::Status refused = StatusOfRun(WithStaticCache(job, "32KiB", 4, 2, 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_TRUE(absl::StartsWith(refused.message(), "cache.budget without the rows of one batch is "))
      << refused;
}

}  // namespace
}  // namespace thermocline
