#include "worker/data/byte_source.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

// All bytes, read in pieces of `piece`, or the error that ended it.
absl::StatusOr<std::string> ReadAll(const std::string& path, size_t piece) {
  auto source = ByteSource::Open(path);
  if (!source.ok()) return source.status();
  std::string all;
  std::string buffer(piece, '\0');
  for (;;) {
    auto n = (*source)->Read(absl::MakeSpan(&buffer[0], piece));
    if (!n.ok()) return n.status();
    if (*n == 0) break;
    all.append(buffer, 0, *n);
  }
  EXPECT_EQ((*source)->position(), (*source)->size());
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
