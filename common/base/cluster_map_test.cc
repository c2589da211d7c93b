#include "common/base/cluster_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace thermocline {
namespace {

TEST(ClusterMapTest, RangesAreContiguousEvenAndComplete) {
  for (uint32_t servers : {1u, 2u, 3u, 4u, 7u, 16u, 100u, 1000u, 65535u, 65536u}) {
    const ClusterMap map(servers);
    std::vector<uint32_t> partitions(servers);
    uint32_t last = 0;
    for (uint32_t partition = 0; partition < kNumPartitions; ++partition) {
      const uint32_t server = map.ServerOfPartition(partition).value();
      ASSERT_LT(server, servers);
      ASSERT_TRUE(server == last || server == last + 1) << "partition " << partition;
      last = server;
      ++partitions[server];
    }
    for (uint32_t server = 0, next = 0; server < servers; ++server) {
      const ClusterMap::PartitionRange range = map.PartitionRangeOf(ServerIndex(server));
      ASSERT_EQ(range.begin, next) << "server " << server;
      ASSERT_EQ(range.end - range.begin, partitions[server]) << "server " << server;
      next = range.end;
    }
    const auto [fewest, most] = std::minmax_element(partitions.begin(), partitions.end());
    EXPECT_GE(*fewest, kNumPartitions / servers) << servers << " servers";
    EXPECT_LE(*most, kNumPartitions / servers + 1) << servers << " servers";
  }
}

TEST(ClusterMapTest, PlacementIsPinned) {
  const ClusterMap map(3);
  EXPECT_EQ(map.ServerOfPartition(21845), ServerIndex(0));
  EXPECT_EQ(map.ServerOfPartition(21846), ServerIndex(1));
  EXPECT_EQ(map.ServerOfPartition(43690), ServerIndex(1));
  EXPECT_EQ(map.ServerOfPartition(43691), ServerIndex(2));
  EXPECT_EQ(map.ServerOfHash(KeyHash(TableSalt(TableId(7)), 42)), ServerIndex(0));
  EXPECT_EQ(map.ServerOfHash(KeyHash(TableSalt(TableId(0)), 0)), ServerIndex(2));
}

TEST(ClusterMapTest, KeysSpreadEvenly) {
  const ClusterMap map(4);
  std::vector<int> keys(4);
  const uint64_t salt = TableSalt(TableId(3));
  for (Key key = 0; key < 100000; ++key) ++keys[map.ServerOfHash(KeyHash(salt, key)).value()];
  for (int n : keys) EXPECT_NEAR(n, 25000, 700);  // five standard deviations
}

TEST(ClusterMapDeathTest, RefusesImpossibleNumbersOfServers) {
  EXPECT_DEATH(ClusterMap(0), "num_servers");
  EXPECT_DEATH(ClusterMap(kNumPartitions + 1), "num_servers");
  EXPECT_DEATH(ClusterMap(3).PartitionRangeOf(ServerIndex(3)), "server");
}

}  // namespace
}  // namespace thermocline
