#include "server/storage/push_record.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

wire::PushChunk TwoTables() {
  wire::PushChunk chunk;
  chunk.header.rank = WorkerRank(3);
  chunk.chunk = 1;
  chunk.num_chunks = 2;
  chunk.learning_rate = 0.5f;
  chunk.step = Step(8);
  chunk.tables = {{TableId(4), wire::PushKind::kGradient, 0, 2, 0, 4},
                  {TableId(9), wire::PushKind::kAssign, 2, 1, 4, 3}};
  for (const Key key : {Key{10}, Key{0x1122334455667788}, Key{12}}) chunk.keys.push_back(key);
  for (const uint32_t count : {1u, 2u, 3u}) chunk.counts.push_back(count);
  for (int i = 0; i < 7; ++i) chunk.values.push_back(0.25f * static_cast<float>(i));
  return chunk;
}

std::string Payload(const wire::PushChunk& chunk) {
  return absl::StrJoin(PushRecord(chunk).pieces(), "");
}

TEST(PushRecordTest, ComesBack) {
  const wire::PushChunk chunk = TwoTables();
  const absl::StatusOr<wire::PushChunk> back = DecodePushRecord(Payload(chunk));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->header.rank, chunk.header.rank);
  EXPECT_EQ(back->chunk, chunk.chunk);
  EXPECT_EQ(back->num_chunks, chunk.num_chunks);
  EXPECT_EQ(back->learning_rate, chunk.learning_rate);
  EXPECT_EQ(back->step, chunk.step);
  ASSERT_EQ(back->tables.size(), chunk.tables.size());
  for (size_t t = 0; t < chunk.tables.size(); ++t) {
    EXPECT_EQ(back->tables[t].table, chunk.tables[t].table);
    EXPECT_EQ(back->tables[t].kind, chunk.tables[t].kind);
    EXPECT_EQ(back->KeysOf(back->tables[t]), chunk.KeysOf(chunk.tables[t]));
    EXPECT_EQ(back->CountsOf(back->tables[t]), chunk.CountsOf(chunk.tables[t]));
    EXPECT_EQ(back->ValuesOf(back->tables[t]), chunk.ValuesOf(chunk.tables[t]));
  }
}

TEST(PushRecordTest, AnEmptyPushIsARecordToo) {
  wire::PushChunk chunk;
  chunk.step = Step(0);
  const absl::StatusOr<wire::PushChunk> back = DecodePushRecord(Payload(chunk));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->tables.empty());
  EXPECT_TRUE(back->keys.empty());
}

// The bytes on disk are a contract with the files of earlier builds.
TEST(PushRecordTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(Payload(TwoTables())),
            // rank, chunk, num_chunks, learning_rate, step
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
    const absl::StatusOr<wire::PushChunk> chunk = DecodePushRecord(damaged);
    if (!chunk.ok()) continue;
    EXPECT_EQ(Payload(*chunk).size(), payload.size());
  }
}

}  // namespace
}  // namespace thermocline
