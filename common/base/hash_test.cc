// The golden values were computed by another implementation (Python's integers). They may never
// change: they decide which server holds a key.
#include "common/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

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

}  // namespace
}  // namespace thermocline
