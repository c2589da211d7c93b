#include "common/checkpoint/row_key.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

std::string Bytes(const RowKey& key) {
  const auto bytes = EncodeRowKey(key);
  return {bytes.begin(), bytes.end()};
}

// docs/formats.md shows these bytes.
TEST(RowKeyTest, GoldenBytes) {
  const RowKey key = RowKeyOf(TableId(4), 0x1122334455667788);
  EXPECT_EQ(absl::BytesToHexString(Bytes(key)),
            "00000004"
            "24e6"
            "1122334455667788");
  const float row[] = {0.5f, -2};
  std::string value(RowValueBytes(2), '?');
  EncodeRowValue(7, 1000, row, absl::MakeSpan(&value[0], value.size()));
  EXPECT_EQ(absl::BytesToHexString(value),
            "07000000"
            "e8030000"
            "0000003f"
            "000000c0");
}

TEST(RowKeyTest, TheOrderOfBytesIsTheOrderOfKeys) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    // Few distinct tables and partitions, so that later shards decide too.
    const auto make = [&] {
      RowKey key;
      key.table = TableId(static_cast<uint32_t>(random() % 3 << (random() % 31)));
      key.partition = static_cast<uint32_t>(random() % 3 * 32767);
      key.key = random() >> (random() % 64);
      return key;
    };
    const RowKey a = make(), b = make();
    EXPECT_EQ(a < b, Bytes(a) < Bytes(b));
    EXPECT_EQ(a == b, Bytes(a) == Bytes(b));
    const auto again = DecodeRowKey(Bytes(a));
    ASSERT_TRUE(again.has_value());
    EXPECT_TRUE(*again == a);
  }
}

TEST(RowKeyTest, RefusesOtherSizes) {
  EXPECT_FALSE(DecodeRowKey(std::string(kRowKeyBytes - 1, 'x')).has_value());
  EXPECT_FALSE(DecodeRowKey(std::string(kRowKeyBytes + 1, 'x')).has_value());
  uint32_t lookups, changed;
  std::vector<float> row;
  for (const size_t bytes : {0, 4, 7, 9, 10, 11}) {
    EXPECT_FALSE(DecodeRowValue(std::string(bytes, 'x'), &lookups, &changed, &row)) << bytes;
  }
  const std::string value("\1\0\0\0\2\0\0\0\0\0\0\x3f", 12);
  EXPECT_TRUE(DecodeRowValue(value, &lookups, &changed, &row));
  EXPECT_EQ(lookups, 1u);
  EXPECT_EQ(changed, 2u);
  EXPECT_EQ(row, std::vector<float>{0.5f});
}

}  // namespace
}  // namespace thermocline
