#include "common/checkpoint/listed_file.h"

#include <random>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

constexpr char kPath[] = "/d/file";

TEST(ListedFileTest, IsAsTheManifestSaysOrDamaged) {
  SimulatedDisk disk;
  ASSERT_TRUE(disk.CreateDirectory("/d").ok());
  ASSERT_TRUE((*disk.Create(kPath))->Append({"twelve bytes"}).ok());
  CheckpointFile listed;
  listed.set_bytes(12);
  EXPECT_TRUE(OpenListedFile(&disk, kPath, listed).ok());
  listed.set_bytes(13);
  const absl::Status size = OpenListedFile(&disk, kPath, listed).status();
  EXPECT_EQ(size.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(size.message()),
              HasSubstr("'/d/file' is damaged: it has 12 bytes, the manifest says 13"));
  EXPECT_EQ(OpenListedFile(&disk, "/d/gone", listed).status(),
            absl::DataLossError("'/d/gone' is missing"));
}

// Longer than what is read at a time.
TEST(ListedFileTest, ChecksumFromAnyPlaceToTheEnd) {
  std::mt19937_64 random(TestSeed());
  std::string bytes(2 * kListedFileReadBytes + 77, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  SimulatedDisk disk;
  ASSERT_TRUE(disk.CreateDirectory("/d").ok());
  ASSERT_TRUE((*disk.Create(kPath))->Append({bytes}).ok());
  const auto file = disk.Open(kPath);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const size_t begin : {size_t{0}, size_t{1}, kListedFileReadBytes, bytes.size() - 1,
                             bytes.size(), static_cast<size_t>(random() % bytes.size())}) {
    const absl::string_view rest = absl::string_view(bytes).substr(begin);
    EXPECT_EQ(*Crc32cFrom(**file, begin), ExtendCrc32c(0, rest.data(), rest.size())) << begin;
  }
}

}  // namespace
}  // namespace thermocline
