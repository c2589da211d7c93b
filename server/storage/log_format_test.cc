#include "server/storage/log_format.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

template <typename Array>
std::string Text(const Array& bytes) {
  return std::string(bytes.data(), bytes.size());
}

const LogIdentity kIdentity = {0x1122334455667788u, 3, 2};

// The bytes on disk are a contract with the files of earlier builds.
TEST(LogFormatTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(Text(EncodeSegmentHeader({kIdentity, Lsn(9)}))),
            "54636c6e50757368"
            "02000000"
            "02000000"
            "8877665544332211"
            "0300000000000000"
            "0900000000000000"
            "0000000000000000000000000000000000000000"
            "864dcb37");
  EXPECT_EQ(absl::BytesToHexString(Text(EncodeSegmentHeader({kIdentity, Lsn(9), Step(6)})))
                .substr(80, 40),
            "0700000000000000"
            "000000000000000000000000");
  EXPECT_EQ(absl::BytesToHexString(Text(EncodeSegmentHeader({kIdentity, Lsn(9), Step(6), Lsn(4)})))
                .substr(96, 24),
            "0400000000000000"
            "00000000");
  RecordHeader header;
  header.lsn = Lsn(10);
  header.generation = 3;
  header.synced_through = Lsn(8);
  header.type = 1;
  EXPECT_EQ(absl::BytesToHexString(Text(EncodeRecordHeader(header, {"pay", "load"}))),
            "1b95d822"
            "07000000"
            "0a00000000000000"
            "0300000000000000"
            "0800000000000000"
            "01000000"
            "00000000");
  EXPECT_EQ(SegmentName({5, Lsn(0xABC)}), "push-0000000000000005-0000000000000abc.log");
  EXPECT_EQ(JobHash("criteo-1"), 16958749753434739122u);
}

TEST(LogFormatTest, SegmentHeadersComeBack) {
  const std::string bytes = Text(EncodeSegmentHeader({kIdentity, Lsn(9), Step(0), Lsn(7)}));
  SegmentHeader header;
  ASSERT_EQ(DecodeSegmentHeader(bytes, &header), SegmentHeaderState::kValid);
  EXPECT_TRUE(header.identity == kIdentity);
  EXPECT_EQ(header.first_lsn, Lsn(9));
  EXPECT_EQ(header.newest_before, Step(0));
  EXPECT_EQ(header.synced_through, Lsn(7));
  EXPECT_EQ(header.version, kLogFormatVersion);
  EXPECT_EQ(DecodeSegmentHeader(bytes.substr(0, 63), &header), SegmentHeaderState::kDamaged);
  EXPECT_EQ(DecodeSegmentHeader("", &header), SegmentHeaderState::kDamaged);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_EQ(DecodeSegmentHeader(damaged, &header), SegmentHeaderState::kDamaged) << bit;
  }
}

// The header of a file that this program can't read still says whose it is.
TEST(LogFormatTest, HeadersOfOtherFormatsAreKnown) {
  SegmentHeader other = {kIdentity, Lsn(9), Step(0), Lsn(7)};
  for (const uint32_t version : {1u, kLogFormatVersion + 1}) {
    other.version = version;
    SegmentHeader header;
    ASSERT_EQ(DecodeSegmentHeader(Text(EncodeSegmentHeader(other)), &header),
              SegmentHeaderState::kOtherVersion);
    EXPECT_EQ(header.version, version);
    EXPECT_TRUE(header.identity == kIdentity);
    EXPECT_EQ(header.first_lsn, Lsn(9));
  }
}

TEST(LogFormatTest, EveryFlippedBitOfARecordShows) {
  RecordHeader header;
  header.lsn = Lsn(1);
  header.generation = 7;
  std::string record = Text(EncodeRecordHeader(header, {"some ", "payload"})) + "some payload";
  record.resize(RecordBytes(12));
  EXPECT_TRUE(RecordIsIntact(record));
  EXPECT_EQ(PeekRecordHeader(record).payload_bytes, 12u);
  EXPECT_EQ(PeekRecordHeader(record).lsn, Lsn(1));
  EXPECT_EQ(PeekRecordHeader(record).generation, 7u);
  for (size_t bit = 0; bit < 8 * (kRecordHeaderBytes + 12); ++bit) {
    if (bit / 8 >= 4 && bit / 8 < 8) continue;  // The length: the caller checks that it fits.
    record[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(RecordIsIntact(record)) << bit;
    record[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

TEST(LogFormatTest, NamesOfOthersAreNotSegments) {
  const auto parsed = ParseSegmentName(SegmentName({3, Lsn(77)}));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->generation, 3u);
  EXPECT_EQ(parsed->number, Lsn(77));
  const std::string good = SegmentName({3, Lsn(77)});
  for (const std::string& name :
       {std::string(), std::string("x"), good + ".tmp", good.substr(1), "pull" + good.substr(4),
        "push-000000000000000g" + good.substr(21), "push-000000000000000A" + good.substr(21)}) {
    EXPECT_FALSE(ParseSegmentName(name).has_value()) << name;
  }
}

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
            // num_tables, num_row_limits, num_keys, num_values
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

// Keys without a gradient have no values.
TEST(PushRecordTest, CountsComeBack) {
  wire::PushChunk chunk = TwoTables();
  chunk.tables[1].kind = wire::PushKind::kCount;
  chunk.tables[1].value_floats = 0;
  chunk.values.resize(4);
  const std::string payload = Payload(chunk);
  EXPECT_EQ(absl::BytesToHexString(payload.substr(72, 24)),
            "0900000002000000"
            "0100000000000000"
            "0000000000000000");
  const absl::StatusOr<wire::PushChunk> back = DecodePushRecord(payload);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->tables.size(), 2u);
  EXPECT_EQ(back->tables[1].kind, wire::PushKind::kCount);
  EXPECT_EQ(back->KeysOf(back->tables[1]), chunk.KeysOf(chunk.tables[1]));
  EXPECT_EQ(back->CountsOf(back->tables[1]), chunk.CountsOf(chunk.tables[1]));
  EXPECT_TRUE(back->ValuesOf(back->tables[1]).empty());
  // A later kind is one of a later program.
  std::string later = payload;
  later[76] = static_cast<char>(wire::kNumPushKinds);
  EXPECT_EQ(DecodePushRecord(later).status(),
            absl::DataLossError("a push record whose kind 3 is unknown"));
}

// They stand between the tables and the keys; without any, not a byte is theirs.
TEST(PushRecordTest, RowLimitsComeBack) {
  wire::PushChunk chunk = TwoTables();
  const std::string without = Payload(chunk);
  chunk.row_limits = {{TableId(4), 7}, {TableId(9), 0}};
  const std::string payload = Payload(chunk);
  EXPECT_EQ(absl::BytesToHexString(payload.substr(28, 4)), "02000000");
  EXPECT_EQ(absl::BytesToHexString(payload.substr(96, 16)), "04000000070000000900000000000000");
  EXPECT_EQ(
      payload.substr(0, 28) + std::string(4, 0) + payload.substr(32, 64) + payload.substr(112),
      without);
  const absl::StatusOr<wire::PushChunk> back = DecodePushRecord(payload);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->row_limits, chunk.row_limits);
  EXPECT_EQ(back->keys.size(), chunk.keys.size());
}

TEST(PushRecordTest, AnyOtherSizeIsRefused) {
  wire::PushChunk chunk = TwoTables();
  chunk.row_limits = {{TableId(4), 7}};
  const std::string payload = Payload(chunk);
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
