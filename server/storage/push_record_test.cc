#include "server/storage/push_record.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

wire::PushPart TwoTables() {
  wire::PushPart part;
  part.header.rank = WorkerRank(3);
  part.part = 1;
  part.num_parts = 2;
  part.learning_rate = 0.5f;
  part.step = Step(8);
  part.tables = {{TableId(4), wire::PushKind::kGradient, 0, 2, 0, 4},
                 {TableId(9), wire::PushKind::kAssign, 2, 1, 4, 3}};
  for (const Key key : {Key{10}, Key{0x1122334455667788}, Key{12}}) part.keys.push_back(key);
  for (const uint32_t count : {1u, 2u, 3u}) part.counts.push_back(count);
  for (int i = 0; i < 7; ++i) part.values.push_back(0.25f * static_cast<float>(i));
  return part;
}

std::string Payload(const wire::PushPart& part) {
  return absl::StrJoin(PushRecord(part).pieces(), "");
}

TEST(PushRecordTest, ComesBack) {
  const wire::PushPart part = TwoTables();
  const absl::StatusOr<wire::PushPart> back = DecodePushRecord(Payload(part));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->header.rank, part.header.rank);
  EXPECT_EQ(back->part, part.part);
  EXPECT_EQ(back->num_parts, part.num_parts);
  EXPECT_EQ(back->learning_rate, part.learning_rate);
  EXPECT_EQ(back->step, part.step);
  ASSERT_EQ(back->tables.size(), part.tables.size());
  for (size_t t = 0; t < part.tables.size(); ++t) {
    EXPECT_EQ(back->tables[t].table, part.tables[t].table);
    EXPECT_EQ(back->tables[t].kind, part.tables[t].kind);
    EXPECT_EQ(back->KeysOf(back->tables[t]), part.KeysOf(part.tables[t]));
    EXPECT_EQ(back->CountsOf(back->tables[t]), part.CountsOf(part.tables[t]));
    EXPECT_EQ(back->ValuesOf(back->tables[t]), part.ValuesOf(part.tables[t]));
  }
}

TEST(PushRecordTest, AnEmptyPushIsARecordToo) {
  wire::PushPart part;
  part.step = Step(0);
  const absl::StatusOr<wire::PushPart> back = DecodePushRecord(Payload(part));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->tables.empty());
  EXPECT_TRUE(back->keys.empty());
}

// The bytes on disk are a contract with the files of earlier builds.
TEST(PushRecordTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(Payload(TwoTables())),
            // rank, part, num_parts, learning_rate, step
            "03000000"
            "01000000"
            "02000000"
            "0000003f"
            "0800000000000000"
            // num_tables, zero, num_keys, num_values
            "02000000"
            "00000000"
            "0300000000000000"
            "0700000000000000"
            // two tables
            "04000000"
            "00000000"
            "0200000000000000"
            "0400000000000000"
            "09000000"
            "01000000"
            "0100000000000000"
            "0300000000000000"
            // keys, counts, values
            "0a00000000000000"
            "8877665544332211"
            "0c00000000000000"
            "01000000"
            "02000000"
            "03000000"
            "00000000"
            "0000803e"
            "0000003f"
            "0000403f"
            "0000803f"
            "0000a03f"
            "0000c03f");
}

TEST(PushRecordTest, AnyOtherSizeIsRefused) {
  const std::string payload = Payload(TwoTables());
  for (size_t bytes = 0; bytes < payload.size(); ++bytes) {
    EXPECT_EQ(DecodePushRecord(payload.substr(0, bytes)).status().code(),
              absl::StatusCode::kDataLoss)
        << bytes;
  }
  EXPECT_EQ(DecodePushRecord(payload + "x").status().code(), absl::StatusCode::kDataLoss);
}

// Damage that a checksum missed may change values, but never makes us read beyond the payload.
TEST(PushRecordTest, DamagedSizesAreNeverBelieved) {
  std::mt19937_64 random(1);
  const std::string payload = Payload(TwoTables());
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = payload;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<wire::PushPart> part = DecodePushRecord(damaged);
    if (!part.ok()) continue;
    EXPECT_EQ(Payload(*part).size(), payload.size());
  }
}

}  // namespace
}  // namespace thermocline
