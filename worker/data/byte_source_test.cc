#include "worker/data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

// All that is left to read, or the error that ended it.
absl::StatusOr<std::string> ReadRest(ByteSource* source, size_t piece) {
  std::string all;
  std::string buffer(piece, '\0');
  for (;;) {
    auto n = source->Read(absl::MakeSpan(&buffer[0], piece));
    if (!n.ok()) return n.status();
    if (*n == 0) return all;
    all.append(buffer, 0, *n);
  }
}

// All bytes, read in pieces of `piece`, or the error that ended it.
absl::StatusOr<std::string> ReadAll(const std::string& path, size_t piece) {
  auto source = ByteSource::Open(path);
  if (!source.ok()) return source.status();
  auto all = ReadRest(source->get(), piece);
  EXPECT_TRUE(!all.ok() || (*source)->position() == (*source)->size());
  return all;
}

// Hard to compress, so that the compressed form spans many of the source's buffers.
std::string Noise(size_t bytes) {
  std::string text;
  uint64_t x = 1;
  while (text.size() < bytes) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    absl::StrAppend(&text, x >> 16, "\n");
  }
  return text;
}

TEST(ByteSource, PlainFile) {
  TempFolder folder;
  const std::string path = folder.Write("a.txt", "hello");
  EXPECT_EQ(*ReadAll(path, 2), "hello");
  EXPECT_EQ(*ReadAll(folder.Write("empty", ""), 10), "");
  EXPECT_EQ(*ReadAll(folder.Write("one", "x"), 10), "x");
}

TEST(ByteSource, GzipByItsBytesNotItsName) {
  TempFolder folder;
  const std::string text = Noise(2 << 20);
  const std::string path = folder.Write("a.txt", Gzip(text));
  EXPECT_EQ(*ReadAll(path, 100'000), text);
  EXPECT_EQ(*ReadAll(folder.Write("named.gz", "plain"), 10), "plain");
}

TEST(ByteSource, ZstdByItsBytes) {
  TempFolder folder;
  const std::string text = Noise(2 << 20);
  for (const size_t piece : {size_t{777}, size_t{100'000}, size_t{4} << 20}) {
    EXPECT_EQ(*ReadAll(folder.Write("a.txt", Zstd(text)), piece), text);
  }
  EXPECT_EQ(*ReadAll(folder.Write("two.zst", Zstd("ab") + Zstd("") + Zstd("cd")), 10), "abcd");
  EXPECT_EQ(*ReadAll(folder.Write("empty.zst", Zstd("")), 10), "");
  const std::string whole = Zstd(text);
  const std::string path = folder.Write("cut.zst", whole.substr(0, whole.size() / 2));
  for (const size_t piece : {size_t{777}, size_t{4} << 20}) {
    EXPECT_EQ(ReadAll(path, piece).status(),
              absl::DataLossError(absl::StrCat(path, ": zstd data is cut off at byte ",
                                               whole.size() / 2, ", the end of the file")));
  }
  std::string wrong = whole;
  wrong[4] = '\xff';  // What the frame's header says of it.
  EXPECT_EQ(ReadAll(folder.Write("wrong.zst", wrong), 1000).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(ByteSource, GzipMembersFollowEachOther) {
  TempFolder folder;
  EXPECT_EQ(*ReadAll(folder.Write("two.gz", Gzip("ab") + Gzip("") + Gzip("cd")), 10), "abcd");
  EXPECT_EQ(*ReadAll(folder.Write("padded.gz", Gzip("ab") + std::string(1000, '\0')), 10), "ab");
}

TEST(ByteSource, TruncatedGzipNamesFileAndOffset) {
  TempFolder folder;
  const std::string whole = Gzip(Noise(1 << 20));
  // Within the header, the data, the trailer.
  for (size_t size : {size_t{5}, whole.size() / 2, whole.size() - 1}) {
    const std::string path = folder.Write("cut.gz", whole.substr(0, size));
    const absl::Status status = ReadAll(path, 1 << 16).status();
    EXPECT_EQ(status, absl::DataLossError(absl::StrCat(path, ": gzip data is cut off at byte ",
                                                       size, ", the end of the file")));
  }
  const std::string path = folder.Write("second.gz", Gzip("ab") + whole.substr(0, 100));
  EXPECT_EQ(ReadAll(path, 1 << 16).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ByteSource, CorruptGzipNamesFileAndOffset) {
  TempFolder folder;
  std::string bytes = Gzip(Noise(1 << 20));
  bytes[bytes.size() / 2] ^= 0x55;
  const std::string path = folder.Write("corrupt.gz", bytes);
  const absl::Status status = ReadAll(path, 1 << 16).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StartsWith(status.message(), path + ": corrupt gzip data near byte "))
      << status;

  const std::string garbage = folder.Write("garbage.gz", Gzip("ab") + "not gzip");
  EXPECT_EQ(ReadAll(garbage, 10).status().code(), absl::StatusCode::kDataLoss);
}

// Words that come again at many distances, so that blocks refer to the text before them.
std::string Words(size_t bytes) {
  std::string text;
  uint64_t x = 1;
  while (text.size() < bytes) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    absl::StrAppend(&text, "word", (x >> 40) % 3000, (x >> 33) % 7 == 0 ? "\n" : "\t");
  }
  return text;
}

TEST(ByteSource, GzipCanBeReadFromEachPointWithinAndBetweenItsMembers) {
  TempFolder folder;
  const std::string text = Words(3 << 20) + Noise(1 << 20);
  const std::string tail = Words(100'000);
  for (const auto& [level, strategy] :
       {std::pair(1, Z_DEFAULT_STRATEGY), std::pair(6, Z_FILTERED),
        std::pair(9, Z_DEFAULT_STRATEGY), std::pair(6, Z_HUFFMAN_ONLY)}) {
    SCOPED_TRACE(absl::StrCat(level, " ", strategy));
    const std::string all = text + tail + tail;
    const std::string path =
        folder.Write("a.gz", GzipBy(text, level, strategy) + GzipBy(tail, level, strategy) +
                                 GzipBy(tail, 0, strategy) + std::string(9, '\0'));
    for (const size_t piece : {size_t{1000}, size_t{1} << 20}) {
      std::vector<RestartPoint> points;
      auto source = *ByteSource::Open(path);
      source->CollectPoints(100'000,
                            [&](RestartPoint point) { points.push_back(std::move(point)); });
      ASSERT_EQ(*ReadRest(source.get(), piece), all);
      const size_t least = piece < 100'000 ? 15 : 5;
      EXPECT_GE(points.size(), least);
      EXPECT_GE(std::count_if(points.begin(), points.end(),
                              [](const RestartPoint& point) { return point.bits > 0; }),
                least / 2);
      int64_t last = 0;
      source = *ByteSource::Open(path);
      for (const RestartPoint& point : points) {
        EXPECT_GE(point.offset, last + 100'000);
        last = point.offset;
        ASSERT_TRUE(source->Restart(point).ok());
        EXPECT_TRUE(*ReadRest(source.get(), piece) == all.substr(point.offset)) << point.offset;
      }
    }
  }
}

TEST(ByteSource, BlocksWithoutCodesOfTheirOwnAreReadWhereAPointIsSought) {
  TempFolder folder;
  const std::string text = Words(1 << 20);
  for (const std::string& bytes : {GzipBy(text, 6, Z_FIXED), GzipBy(text, 0, Z_DEFAULT_STRATEGY)}) {
    const std::string path = folder.Write("a.gz", bytes);
    auto source = *ByteSource::Open(path);
    std::vector<RestartPoint> points;
    source->CollectPoints(1000, [&](RestartPoint point) { points.push_back(std::move(point)); });
    EXPECT_TRUE(*ReadRest(source.get(), 5000) == text);
    source = *ByteSource::Open(path);
    for (const RestartPoint& point : points) {
      ASSERT_TRUE(source->Restart(point).ok());
      EXPECT_TRUE(*ReadRest(source.get(), 1 << 20) == text.substr(point.offset));
    }
  }
}

TEST(ByteSource, GzipThatIsCutOffBehindAPointIsNamed) {
  TempFolder folder;
  const std::string whole = Gzip(Words(2 << 20));
  std::vector<RestartPoint> points;
  auto source = *ByteSource::Open(folder.Write("a.gz", whole));
  source->CollectPoints(500'000, [&](RestartPoint point) { points.push_back(std::move(point)); });
  ASSERT_TRUE(ReadRest(source.get(), 1 << 20).ok());
  ASSERT_FALSE(points.empty());
  // Within the text, and within the trailer that is only skipped.
  for (const size_t size : {whole.size() - 1000, whole.size() - 8, whole.size() - 1}) {
    auto cut = *ByteSource::Open(folder.Write("cut.gz", whole.substr(0, size)));
    ASSERT_TRUE(cut->Restart(points[0]).ok());
    EXPECT_TRUE(absl::StrContains(ReadRest(cut.get(), 1 << 20).status().message(),
                                  absl::StrCat("is cut off at byte ", size)))
        << size;
  }
  RestartPoint wrong = points[0];
  wrong.window[wrong.window.size() / 2] ^= 1;
  EXPECT_EQ(source->Restart(wrong).code(), absl::StatusCode::kDataLoss);
}

// Returns `text` as a member whose header has all that a header may have, `extra` bytes in one
// field.
std::string GzipWithHeader(const std::string& text, size_t extra) {
  std::string field(extra, 'x'), name = "a name", comment = "a comment";
  gz_header header = {};
  header.extra = reinterpret_cast<Bytef*>(field.data());
  header.extra_len = static_cast<uInt>(extra);
  header.name = reinterpret_cast<Bytef*>(name.data());
  header.comment = reinterpret_cast<Bytef*>(comment.data());
  header.hcrc = 1;
  return GzipBy(text, 6, Z_DEFAULT_STRATEGY, &header);
}

TEST(ByteSource, AMembersHeaderMayLieInTwoBuffers) {
  TempFolder folder;
  constexpr size_t kBuffer = 256 << 10;  // What is read of a file at once.
  const std::string text = Noise(500'000);
  const size_t least = GzipWithHeader(text, 0).size();
  ASSERT_LT(least, kBuffer);
  ASSERT_GT(least, kBuffer - 60'000);
  const std::string second = GzipWithHeader("second", 5);
  for (size_t split = 0; split < 45; ++split) {
    const std::string first = GzipWithHeader(text, kBuffer - split - least);
    ASSERT_EQ(first.size(), kBuffer - split);
    const auto read = ReadAll(folder.Write("two.gz", first + second), 100'000);
    ASSERT_TRUE(read.ok()) << split << " " << read.status();
    EXPECT_TRUE(*read == text + "second") << split;
    // Cut off there, it is no whole file.
    const auto cut = ReadAll(folder.Write("cut.gz", first + second.substr(0, split)), 100'000);
    EXPECT_EQ(cut.ok(), split == 0);
  }
}

TEST(ByteSource, WhatFollowsAMemberWithoutBeingOneIsCorrupt) {
  TempFolder folder;
  const std::string path = folder.Write("line.gz", Gzip("ab") + "\n");
  EXPECT_TRUE(absl::EndsWith(ReadAll(path, 10).status().message(), ": not the header of a member"));
}

// No byte may change without notice: those of a member's header that say nothing of the text aside.
TEST(ByteSource, AFlippedByteOfGzipIsNoticed) {
  TempFolder folder;
  const std::string text = Words(20'000);
  const std::string whole = Gzip(text);
  for (size_t at = 0; at < whole.size(); at += at < 20 || at + 20 > whole.size() ? 1 : 37) {
    for (const int flip : {1, 0x10, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const absl::StatusOr<std::string> read = ReadAll(folder.Write("a.gz", bytes), 7000);
      if (read.ok() && at >= 3 && at < 10) {
        EXPECT_EQ(*read, text) << at << " " << flip;
        continue;
      }
      // Without its first bytes it is no gzip.
      EXPECT_EQ(read.ok(), at < 2) << at << " " << flip;
    }
  }
}

TEST(ByteSource, WhatCannotBeOpened) {
  TempFolder folder;
  const std::string path = folder.path() + "/missing.tsv";
  EXPECT_EQ(ByteSource::Open(path).status(),
            absl::NotFoundError(path + ": cannot open: No such file or directory"));
  EXPECT_EQ(ByteSource::Open(folder.path()).status(),
            absl::InvalidArgumentError(folder.path() + ": is a directory, not a file"));
}

// Address 0 is never there, and its bytes can't be read: EIO.
TEST(ByteSourceTest, AFileThatCanNotBeReadForNowIsUnavailable) {
  const absl::Status status = ByteSource::Open("/proc/self/mem").status();
  EXPECT_EQ(status, absl::UnavailableError("/proc/self/mem: cannot read: Input/output error"));
}

}  // namespace
}  // namespace thermocline
