// The golden values were computed by another implementation (Python's integers). They may never
// change: they decide which server holds a key.
#include "common/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(HashTest, Mix64HasItsGoldenValues) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafull);  // the first output of SplitMix64 from seed 0
  EXPECT_EQ(Mix64(1), 0x910a2dec89025cc1ull);
  EXPECT_EQ(Mix64(2), 0x975835de1c9756ceull);
  EXPECT_EQ(Mix64(~0ull), 0xe4d971771b652c20ull);
  EXPECT_EQ(Mix64(0x0123456789abcdefull), 0x157a3807a48faa9dull);
}

TEST(HashTest, TableSaltHasItsGoldenValues) {
  EXPECT_EQ(TableSalt(TableId(0)), 0xec482dc585124d95ull);
  EXPECT_EQ(TableSalt(TableId(1)), 0xb417d0425dcac223ull);
  EXPECT_EQ(TableSalt(TableId(7)), 0x82479e871abd4036ull);
  EXPECT_EQ(TableSalt(TableId(0xffffffffu)), 0xf04ee434201218c9ull);
}

TEST(HashTest, KeysHaveTheirGoldenHashesAndPartitions) {
  const struct {
    uint32_t table;
    Key key;
    uint64_t hash;
    uint32_t partition;
  } golden[] = {
      {0, 0, 0xd6b7fae385327d14ull, 54967},     {0, 1, 0xbc69845c2ca0490full, 48233},
      {1, 0, 0x16e605ebc56a984cull, 5862},      {7, 42, 0x06cf7b47e68a2a87ull, 1743},
      {7, ~0ull, 0xaaa264f8b0323ca0ull, 43682}, {25, 0xdeadbeef, 0x5b09fe578a6c8f8bull, 23305},
  };
  for (const auto& entry : golden) {
    const uint64_t hash = KeyHash(TableSalt(TableId(entry.table)), entry.key);
    EXPECT_EQ(hash, entry.hash) << entry.table << " " << entry.key;
    EXPECT_EQ(PartitionOfHash(hash), entry.partition) << entry.table << " " << entry.key;
  }
}

TEST(HashTest, RowDigestHasItsGoldenValues) {
  EXPECT_EQ(RowDigest(TableId(7), 42, std::vector<float>{1.0f, -2.5f, 0.0f}),
            (Digest{0xe53b94c4fb3c0491ull, 0xa351ad3022d83bfdull}));
  EXPECT_EQ(RowDigest(TableId(7), 42, std::vector<float>{1.0f, -2.5f}),
            (Digest{0xf44a9542e11ee753ull, 0x9e3f0822eb73e791ull}));
  EXPECT_EQ(RowDigest(TableId(0), 0, {}), (Digest{0x18518ef98c385d6aull, 0xba99db780325f161ull}));
}

TEST(HashTest, RowDigestSeesTableKeyOrderAndSignOfZero) {
  const std::vector<float> row = {1, 2, 3, 0};
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto insert = [&](const Digest& digest) { seen.insert({digest.low, digest.high}); };
  insert(RowDigest(TableId(1), 5, row));
  insert(RowDigest(TableId(2), 5, row));
  insert(RowDigest(TableId(1), 6, row));
  insert(RowDigest(TableId(1), 5, std::vector<float>{2, 1, 3, 0}));
  insert(RowDigest(TableId(1), 5, std::vector<float>{3, 0, 1, 2}));
  insert(RowDigest(TableId(1), 5, std::vector<float>{1, 2, 3, -0.0f}));
  insert(RowDigest(TableId(1), 5, std::vector<float>{1, 2, 3}));
  EXPECT_EQ(seen.size(), 7u);
}

TEST(DigestTest, AddCarriesAndWraps) {
  Digest digest{~0ull, 1};
  digest.Add({1, 2});
  EXPECT_EQ(digest, (Digest{0, 4}));
  Digest all{~0ull, ~0ull};
  all.Add({1, 0});
  EXPECT_EQ(all, Digest{});
}

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

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32cTest, PublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  const std::string zeros(32, '\0'), ones(32, '\xFF');
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

TEST(Crc32cTest, PiecesGiveWhatTheWholeGives) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i * 37));
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = Crc32c(text.data(), cut);
    EXPECT_EQ(ExtendCrc32c(first, text.data() + cut, text.size() - cut), whole) << cut;
  }
}

TEST(Crc32cTest, ChecksumsOfPiecesGiveThatOfTheWhole) {
  std::string text;
  for (uint64_t i = 0; i < 70'000; ++i) text.push_back(static_cast<char>(Mix64(i)));
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); cut += 1 + cut / 2) {
    for (const size_t first : {cut, text.size() - cut}) {
      const uint32_t combined =
          CombineCrc32c(Crc32c(text.data(), first),
                        Crc32c(text.data() + first, text.size() - first), text.size() - first);
      EXPECT_EQ(combined, whole) << first;
    }
  }
}

// Bit by bit, as the polynomial says.
uint32_t SlowCrc32c(const std::string& text) {
  uint32_t state = 0xFFFFFFFF;
  for (const char c : text) {
    state ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0x82F63B78u : 0u);
  }
  return ~state;
}

TEST(Crc32cTest, LongDataAreSeveralChains) {
  std::string text;
  for (uint64_t i = 0; i < 10'000; ++i) text.push_back(static_cast<char>(Mix64(i)));
  for (const size_t bytes : {0, 7, 1535, 1536, 1537, 1544, 3071, 3072, 4000, 10'000}) {
    EXPECT_EQ(Crc32c(text.data(), bytes), SlowCrc32c(text.substr(0, bytes))) << bytes;
  }
}

TEST(Crc32cTest, EveryFlippedBitShows) {
  std::string text(67, 'x');
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_NE(Crc32c(text.data(), text.size()), whole) << bit;
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace thermocline
