#include "server/storage/log_format.h"

#include <string>

#include "absl/strings/escaping.h"
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

// Of a file that this program doesn't read, the header still says whose it is.
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

}  // namespace
}  // namespace thermocline
