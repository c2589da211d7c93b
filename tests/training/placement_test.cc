// The place where a cache keeps the rows of a table changes no bit of the model: with one worker
// and several, each placement and all mixtures of two tables, with write-backs amid the run and
// resumes.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/small_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

using Placement = TableSettings::Placement;

// Sets the placements of table "shared", which two features read, and of table "a".
struct Placements {
  Placement shared, a;
};

std::vector<Placements> AllPlacements() {
  const std::vector<Placement> each = {TableSettings::CACHED, TableSettings::REMOTE,
                                       TableSettings::DEVICE};
  std::vector<Placements> all;
  for (const Placement shared : each) {
    for (const Placement a : each) all.push_back({shared, a});
  }
  return all;
}

std::string Name(const Placements& placements) {
  return absl::StrCat("shared ", TableSettings::Placement_Name(placements.shared), ", a ",
                      TableSettings::Placement_Name(placements.a));
}

Job MakeJob(int workers, const std::string& optimizer_of_shared) {
  return MakeSmallJob("adagrad {}", {"cluster.servers=2", "train.passes=2",
                                     absl::StrCat("cluster.workers=", workers),
                                     "table[0].settings.optimizer={" + optimizer_of_shared + "}"});
}

Job WithPlacements(Job job, const Placements& placements, const std::string& budget) {
  for (Table& table : *job.mutable_table()) {
    table.mutable_settings()->set_placement(table.name() == "shared" ? placements.shared
                                                                     : placements.a);
  }
  return WithCache(std::move(job), budget, 3, 2);
}

Outcome Train(const Job& job, const WorkerOptions& options = {}) {
  JobServers servers(job);
  return RunWorkers(job, &servers, options);
}

CacheStats SumOf(const Outcome& outcome) {
  CacheStats sum;
  for (const auto& worker : outcome.workers) {
    const CacheStats& cache = worker->stats.cache();
    EXPECT_LE(cache.rows_held(), cache.capacity_rows());
    sum.set_rows_held(sum.rows_held() + cache.rows_held());
    sum.set_rows_kept(sum.rows_kept() + cache.rows_kept());
    sum.set_hits(sum.hits() + cache.hits());
    sum.set_loaded(sum.loaded() + cache.loaded());
    sum.set_bypassed(sum.bypassed() + cache.bypassed());
    sum.set_evicted(sum.evicted() + cache.evicted());
  }
  return sum;
}

void ExpectSame(const Outcome& cached, const Outcome& uncached) {
  for (const auto& worker : cached.workers) ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(Hex(cached.digest), Hex(uncached.digest));
  EXPECT_EQ(cached.rows, uncached.rows);
  EXPECT_EQ(cached.workers[0]->evaluation.logloss, uncached.workers[0]->evaluation.logloss);
}

// What the counts say of tables on the device or the servers.
void ExpectPlaced(const Placements& placements, const Outcome& outcome) {
  const CacheStats cache = SumOf(outcome);
  const auto both_are = [&](Placement placement) {
    return placements.shared == placement && placements.a == placement;
  };
  EXPECT_EQ(cache.rows_kept() > 0,
            placements.shared == TableSettings::DEVICE || placements.a == TableSettings::DEVICE);
  if (both_are(TableSettings::REMOTE)) {
    EXPECT_EQ(cache.hits() + cache.loaded() + cache.rows_held(), 0u);
  } else {
    EXPECT_GT(cache.hits(), 0u);
  }
  if (both_are(TableSettings::DEVICE)) {
    // Each row came once, and stayed.
    EXPECT_EQ(cache.bypassed() + cache.evicted(), 0u);
    EXPECT_EQ(cache.rows_kept(), cache.loaded());
    EXPECT_EQ(cache.rows_kept(), cache.rows_held());
  }
}

TEST(PlacementTest, EachGivesTheBitsOfNoCache) {
  CaseChoice cases;
  for (const char* const optimizer : {"adagrad {}", "adam {}"}) {
    for (const int workers : {1, 2, 3}) {
      const Job job = MakeJob(workers, optimizer);
      const Outcome uncached = Train(job);
      for (const Placements& placements : AllPlacements()) {
        if (!cases.TakesNext()) continue;
        SCOPED_TRACE(absl::StrCat(optimizer, ", ", workers, " workers, ", Name(placements)));
        const Outcome cached = Train(WithPlacements(job, placements, "256KiB"));
        ExpectSame(cached, uncached);
        ExpectPlaced(placements, cached);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(PlacementTest, CheckpointsAndResumesKeepTheBits) {
  CaseChoice cases;
  for (const int workers : {1, 3}) {
    Job job = MakeJob(workers, "adam {}");
    job.mutable_checkpoint()->set_every_steps(5);
    const Outcome uncached = Train(job);
    for (const Placements& placements : AllPlacements()) {
      if (!cases.TakesNext()) continue;
      SCOPED_TRACE(absl::StrCat(workers, " workers, ", Name(placements)));
      const Job cached = WithPlacements(job, placements, "256KiB");
      JobServers servers(cached);
      Job first = cached;
      first.mutable_train()->set_max_steps(7);
      WorkerOptions options;
      options.max_unwritten_bytes = 1000;  // Rows are written while they are held.
      RunWorkers(first, &servers, options);
      options.start_step = Step(7);
      ExpectSame(RunWorkers(cached, &servers, options), uncached);
      if (HasFailure()) return;
    }
  }
}

TEST(PlacementTest, ADeviceWithoutRoomEndsTheRun) {
  const Job job = MakeJob(1, "adagrad {}");
  const Placements placements = {TableSettings::DEVICE, TableSettings::CACHED};
  const absl::Status status = StatusOfRun(WithPlacements(job, placements, "20000B"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex("table 'shared' has placement DEVICE, and its rows take [0-9]+ "
                                    "bytes so far; cache.budget is 20000 bytes, of which [0-9]+ "
                                    "are for them"));
}

}  // namespace
}  // namespace thermocline
