#include "common/checkpoint/file_frame.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr FrameFormat kFormat = {"TclnTest", 3};

// docs/formats.md describes these bytes.
TEST(FileFrameTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeFrame(kFormat, "abc")),
            "54636c6e54657374"
            "03000000"
            "03000000"
            "a3c3fb32"
            "616263");
}

TEST(FileFrameTest, GivesThePayloadBack) {
  for (const std::string& payload : {std::string(), std::string("x"), std::string(70000, '\0')}) {
    const auto again = DecodeFrame(kFormat, EncodeFrame(kFormat, payload), "F");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, payload);
  }
}

TEST(FileFrameTest, EveryFlippedBitAndEveryCutIsFound) {
  const std::string good = EncodeFrame(kFormat, "payload");
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    const auto status = DecodeFrame(kFormat, bad, "FILE").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bit << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'FILE'"));
  }
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_EQ(DecodeFrame(kFormat, good.substr(0, bytes), "F").status().code(),
              absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(DecodeFrame(kFormat, good + "x", "F").status().code(), absl::StatusCode::kDataLoss);
}

TEST(FileFrameTest, AnotherVersionOrKindIsNamed) {
  const auto version = DecodeFrame(kFormat, EncodeFrame({"TclnTest", 4}, "p"), "F").status();
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(version.message(), "'F' has format version 4; this program knows version 3");
  EXPECT_EQ(DecodeFrame(kFormat, EncodeFrame({"TclnElse", 3}, "p"), "F").status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(WriteWholeFileTest, ACrashAnywhereLeavesTheOldFileOrTheNew) {
  std::mt19937_64 random(TestSeed());
  const std::string before = EncodeFrame(kFormat, std::string(2000, 'a'));
  const std::string after = EncodeFrame(kFormat, std::string(3000, 'b'));
  int old_files = 0, new_files = 0;
  for (int operations = 0; operations < 5; ++operations) {
    for (int round = 0; round < 40; ++round) {
      SimulatedDisk disk;
      ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
      ASSERT_TRUE(WriteWholeFile(&disk, before, "/d/F").ok());
      disk.DieAfter(operations);
      const bool written = WriteWholeFile(&disk, after, "/d/F").ok();
      disk.CrashHost(&random);
      const auto bytes = ReadWholeFile(&disk, "/d/F");
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_TRUE(*bytes == before || *bytes == after);
      EXPECT_TRUE(!written || *bytes == after);
      ++(*bytes == before ? old_files : new_files);
      // A leftover file does not disturb the next write.
      EXPECT_TRUE(WriteWholeFile(&disk, before, "/d/F").ok());
      EXPECT_EQ(*ReadWholeFile(&disk, "/d/F"), before);
      EXPECT_THAT(*disk.List("/d"), ElementsAre("F"));
    }
  }
  EXPECT_GT(old_files, 0);
  EXPECT_GT(new_files, 0);
}

TEST(WriteWholeFileTest, APathMayHaveNoFolder) {
  std::mt19937_64 random(TestSeed());
  SimulatedDisk disk;
  ASSERT_TRUE(CreateDirectories(&disk, ".").ok());
  EXPECT_EQ(WriteWholeFile(&disk, "new", "F"), absl::OkStatus());
  disk.CrashHost(&random);
  EXPECT_EQ(ReadWholeFile(&disk, "F").value_or(""), "new");
}

TEST(WriteWholeFileTest, ErrorsKeepTheOldFile) {
  SimulatedDisk disk;
  ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
  ASSERT_TRUE(WriteWholeFile(&disk, "old", "/d/F").ok());
  disk.SetFreeBytes(2);
  EXPECT_EQ(WriteWholeFile(&disk, "new", "/d/F").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*ReadWholeFile(&disk, "/d/F"), "old");
  EXPECT_EQ(ReadWholeFile(&disk, "/d/G").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace thermocline
