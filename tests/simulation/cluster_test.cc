// A job over several hosts, with all that may happen to them.
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/seed_range.h"
#include "tests/simulation/sim_cluster.h"

namespace thermocline {
namespace {

void Print(const ClusterCounters& sum) {
  std::cout << sum.controllers << " controllers, " << sum.generations << " generations, "
            << sum.overtaken << " overtaken, " << sum.interrupted << " paused in a write; "
            << sum.one_way << " cuts in one direction, " << sum.cuts << " in both, " << sum.pauses
            << " pauses, " << sum.stopped_clocks
            << " of them of the clock, too; killed: " << sum.agents_killed << " agents, "
            << sum.hosts_killed << " hosts, " << sum.processes_killed << " processes, "
            << sum.controllers_killed << " controllers; " << sum.leases_lost << " leases lost, "
            << sum.left_behind << " processes left behind, " << sum.strays
            << " calls to another generation's, " << sum.committed << " checkpoints; "
            << sum.disk.lost << " answers of the disk lost, " << sum.disk.late << " late, "
            << sum.disk.stale << " old folders; " << sum.streams.chunks
            << " chunks between workers, " << sum.streams.broken << " streams broken, "
            << sum.streams.cut << " cut, " << sum.streams.refused << " refused, "
            << sum.streams.strangers << " by another generation, " << sum.streams.late
            << " frames late\n";
}

void RunSeed(uint64_t seed, ClusterCounters* sum) {
  const ClusterSetup setup = ChooseCluster(seed);
  const ClusterResult result = RunCluster(setup);
  ASSERT_TRUE(result.failures.empty()) << "seed " << seed << ": " << result.failures[0];
  const ClusterResult undisturbed = RunCluster(Undisturbed(setup));
  ASSERT_TRUE(undisturbed.failures.empty()) << "seed " << seed << ": " << undisturbed.failures[0];
  EXPECT_EQ(result.last_step, Step(setup.num_steps - 1)) << "seed " << seed;
  EXPECT_TRUE(result.digest == undisturbed.digest) << "seed " << seed;
  sum->Add(result.counters);
}

TEST(ClusterTest, TheModelIsThatOfAnUndisturbedJob) {
  const SeedRange seeds(60);
  ClusterCounters sum;
  for (uint64_t seed = seeds.first; seed < seeds.end; ++seed) RunSeed(seed, &sum);
  std::cout << "seeds " << seeds.first << " to " << seeds.end - 1 << ": ";
  Print(sum);
  if (!seeds.reaches_all) return;
  for (const uint64_t count : {sum.overtaken,
                               sum.interrupted,
                               sum.cuts,
                               sum.one_way,
                               sum.pauses,
                               sum.stopped_clocks,
                               sum.agents_killed,
                               sum.hosts_killed,
                               sum.processes_killed,
                               sum.controllers_killed,
                               sum.leases_lost,
                               sum.left_behind,
                               sum.committed,
                               sum.disk.lost,
                               sum.disk.late,
                               sum.disk.stale,
                               sum.streams.broken,
                               sum.streams.cut,
                               sum.streams.refused,
                               sum.streams.late}) {
    EXPECT_GT(count, 3u);
  }
}

// Seeds beyond those above that failed once.
TEST(ClusterTest, RareSeeds) {
  ClusterCounters sum;
  // A controller that was paused in a commit goes back before it has reported it, and another has
  // begun a generation of the same number.
  RunSeed(659, &sum);
  // A commit fails, the servers remove their shards, and hear of no other attempt.
  RunSeed(5854, &sum);
}

TEST(ClusterTest, SameSeedSameTrace) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(RunCluster(ChooseCluster(seed)).trace, RunCluster(ChooseCluster(seed)).trace) << seed;
  }
  EXPECT_NE(RunCluster(ChooseCluster(1)).trace, RunCluster(ChooseCluster(2)).trace);
}

struct PlantedInCluster {
  const char* name;
  ClusterFault fault;
  uint64_t first_seed = 1;  // Seeds are tried from here on: a rare fault is found soon.
};

class PlantedInClusterTest : public testing::TestWithParam<PlantedInCluster> {};

TEST_P(PlantedInClusterTest, IsFound) {
  constexpr uint64_t kSeeds = 200;
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const ClusterResult result = RunCluster(ChooseCluster(seed, GetParam().fault));
    if (result.failures.empty()) continue;
    std::cout << "found with seed " << seed << ": " << result.failures[0] << "\n";
    return;
  }
  FAIL() << "not found by any of " << kSeeds << " seeds from " << first;
}

INSTANTIATE_TEST_SUITE_P(
    Faults, PlantedInClusterTest,
    testing::Values(PlantedInCluster{"SameNonce", ClusterFault::kSameNonce},
                    PlantedInCluster{"OneWayLease", ClusterFault::kOneWayLease},
                    PlantedInCluster{"CommitsInThePast", ClusterFault::kCommitsInThePast},
                    PlantedInCluster{"TrustsOldFolders", ClusterFault::kTrustsOldFolders},
                    PlantedInCluster{"OldGenerations", ClusterFault::kOldGenerations, 1110},
                    PlantedInCluster{"OldBlocks", ClusterFault::kOldBlocks, 125}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thermocline
