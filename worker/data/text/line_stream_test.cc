#include "worker/data/text/line_stream.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

const std::atomic<bool> kNotCancelled{false};

std::unique_ptr<LineStream> OpenLines(const std::string& path) {
  auto lines = LineStream::Open(path, &kNotCancelled);
  CHECK(lines.ok());
  return *std::move(lines);
}

// The next lines, alone in `raw`.
absl::Status ReadInto(LineStream* lines, int64_t count, RawBatch* raw) {
  raw->ClearText();
  const auto added = lines->Append(count, raw);
  EXPECT_TRUE(!added.ok() || *added == raw->num_rows);
  return added.status();
}

std::vector<std::string> LinesOf(const RawBatch& raw) {
  std::vector<std::string> lines;
  for (int64_t i = 0; i < raw.num_rows; ++i) {
    lines.emplace_back(raw.text.data() + raw.line_begin[i],
                       raw.text.data() + raw.line_begin[i + 1]);
  }
  return lines;
}

// All lines, in batches of `batch`. Checks that skipping counts as many.
std::vector<std::string> ReadLines(const std::string& path, int64_t batch) {
  auto lines = OpenLines(path);
  std::vector<std::string> all;
  RawBatch raw;
  do {
    CHECK(ReadInto(lines.get(), batch, &raw).ok());
    if (raw.num_rows > 0) {
      EXPECT_EQ(raw.OriginOf(0).line, static_cast<int64_t>(all.size()) + 1);
    }
    for (std::string& line : LinesOf(raw)) all.push_back(std::move(line));
  } while (raw.num_rows == batch);
  EXPECT_EQ(*OpenLines(path)->Skip(INT64_MAX), static_cast<int64_t>(all.size())) << path;
  return all;
}

using Strings = std::vector<std::string>;

TEST(LineStream, EveryLineEndsInANewline) {
  TempFolder folder;
  for (int64_t batch : {1, 2, 3, 10}) {
    EXPECT_EQ(ReadLines(folder.Write("a", "a\nbb\nccc\n"), batch),
              (Strings{"a\n", "bb\n", "ccc\n"}));
    EXPECT_EQ(ReadLines(folder.Write("b", "a\nbb\nccc"), batch), (Strings{"a\n", "bb\n", "ccc\n"}));
  }
}

TEST(LineStream, OnlyTrailingBlankLinesAreNoLines) {
  TempFolder folder;
  for (int64_t batch : {1, 2, 3, 10}) {
    EXPECT_EQ(ReadLines(folder.Write("a", "a\n\n\n"), batch), (Strings{"a\n"}));
    EXPECT_EQ(ReadLines(folder.Write("b", "a\r\n\r\n"), batch), (Strings{"a\r\n"}));
    EXPECT_EQ(ReadLines(folder.Write("c", "\n\na\n\nb\n\n"), batch),
              (Strings{"\n", "\n", "a\n", "\n", "b\n"}));
    EXPECT_EQ(ReadLines(folder.Write("d", ""), batch), Strings());
    EXPECT_EQ(ReadLines(folder.Write("e", "\n\n"), batch), Strings());
  }
}

// Lines of all lengths, across the borders of blocks, plain and gzip.
TEST(LineStream, LinesAcrossBlocks) {
  TempFolder folder;
  Strings wanted;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    wanted.push_back(std::string(1 + i * 37 % 1500, static_cast<char>('a' + i % 26)) + "\n");
    text += wanted.back();
  }
  EXPECT_EQ(ReadLines(folder.Write("plain", text), 101), wanted);
  EXPECT_EQ(ReadLines(folder.Write("gzip", Gzip(text)), 101), wanted);
}

TEST(LineStream, SkipCountsLines) {
  TempFolder folder;
  const std::string path = folder.Write("a", "a\n\nb\nc\n\n");
  auto lines = OpenLines(path);
  EXPECT_EQ(*lines->Skip(2), 2);
  RawBatch raw;
  ASSERT_TRUE(ReadInto(lines.get(), 1, &raw).ok());
  EXPECT_EQ(LinesOf(raw), (Strings{"b\n"}));
  EXPECT_EQ(raw.OriginOf(0).line, 3);
  EXPECT_EQ(*lines->Skip(10), 1);
  EXPECT_EQ(lines->position(), lines->size());
}

// Blocks are far shorter than the file.
TEST(LineStream, ScansSayHowFarTheyAre) {
  TempFolder folder;
  constexpr int64_t kLines = 200'000;
  std::string text;
  for (int64_t i = 0; i < kLines; ++i) text += "0123456789\n";
  for (const bool gzip : {false, true}) {
    const std::string path = folder.Write("a", gzip ? Gzip(text) : text);
    const int64_t bytes = static_cast<int64_t>(gzip ? Gzip(text).size() : text.size());
    std::vector<ScanProgress> reports;
    const OnScan on_scan = [&](const ScanProgress& progress) {
      EXPECT_EQ(progress.total_bytes, bytes);
      EXPECT_LE(progress.done_bytes, bytes);
      if (!reports.empty()) {
        EXPECT_FALSE(reports.back().is_over);
        EXPECT_GE(progress.done_bytes, reports.back().done_bytes);
      }
      reports.push_back(progress);
    };
    EXPECT_EQ(*OpenLines(path)->Skip(INT64_MAX, on_scan), kLines);
    EXPECT_GE(reports.size(), 8u);
    EXPECT_TRUE(reports.back().is_over);
    EXPECT_EQ(reports.back().done_bytes, bytes);

    reports.clear();
    auto lines = OpenLines(path);
    EXPECT_EQ(*lines->Skip(kLines / 2, on_scan), kLines / 2);
    EXPECT_GE(reports.size(), 4u);
    EXPECT_TRUE(reports.back().is_over);
    EXPECT_LT(reports.back().done_bytes, bytes);
    // What is read then is no scan.
    const size_t scanned = reports.size();
    RawBatch raw;
    ASSERT_TRUE(ReadInto(lines.get(), kLines, &raw).ok());
    EXPECT_EQ(raw.num_rows, kLines / 2);
    EXPECT_EQ(reports.size(), scanned);
  }
}

// Also inside gzip, and however the file is read first.
TEST(LineStream, BinaryFilesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"\x93NUMPY\x01", "is a NumPy array (.npy); data.format: DLRM_NPY reads those"},
      {std::string("PK\3\4\0", 5), "is a zip archive or NumPy's .npz"},
      {"PAR1\x15", "is a Parquet file; data.train { parquet {} } and `feature` read those"},
      {Gzip("1\n"), "is gzip within gzip"},
      {Zstd("1\n"), "is zstd within a compressed file"},
      {"\xfd"
       "7zXZ",
       "is compressed with xz"},
      {"BZh91AY&SY", "is compressed with bzip2"},
      {std::string(257, '\0') + "ustar", "is a tar archive"},
  };
  TempFolder folder;
  for (const auto& [bytes, what] : files) {
    // ByteSource hands out the content of a compressed file.
    const bool plain_is_binary = bytes != Gzip("1\n") && bytes != Zstd("1\n");
    for (const bool gzip : {false, true}) {
      if (!gzip && !plain_is_binary) continue;
      const std::string path =
          folder.Write("a", gzip ? Gzip(bytes + "\n1,2\n") : bytes + "\n1,2\n");
      const auto expect_named = [&, what = what](const absl::Status& status) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
        EXPECT_EQ(status.message().rfind(path + ": the file " + what, 0), 0u) << status;
      };
      expect_named(OpenLines(path)->Skip(INT64_MAX).status());
      expect_named(OpenLines(path)->Skip(1).status());
      RawBatch raw;
      expect_named(ReadInto(OpenLines(path).get(), 1, &raw));
    }
  }
  // The same bytes elsewhere are the parser's business.
  EXPECT_EQ(ReadLines(folder.Write("b", "1\n\x93NUMPY\n"), 10), (Strings{"1\n", "\x93NUMPY\n"}));
}

// A line end within quotes is part of the row; a quote within a column is none that opens.
TEST(LineStream, RowsWithQuotes) {
  TempFolder folder;
  const Strings rows = {"a,\"b\nc\",d\n", "\"x\"\"\r\n\r\n\"\"\",y\r\n",
                        "5\" tape,z\n",   "q,\"\"\n",
                        "\"a\"\"b\",c\n", "last\n"};
  std::string text;
  for (const std::string& row : rows) text += row;
  // Also where the borders of blocks fall into quotes, and between them.
  for (const int before : {0, (256 << 10) - 20, (256 << 10) - 16, (256 << 10) - 12}) {
    const std::string padding = before == 0 ? "" : std::string(before - 1, 'p') + "\n";
    const std::string path = folder.Write("a", padding + text);
    auto lines = LineStream::Open(path, &kNotCancelled, {',', true}, 7);
    ASSERT_TRUE(lines.ok());
    ASSERT_EQ(*(*lines)->Skip(before > 0 ? 1 : 0), before > 0 ? 1 : 0);
    RawBatch raw;
    ASSERT_TRUE(ReadInto(lines->get(), 100, &raw).ok());
    EXPECT_EQ(LinesOf(raw), rows) << before;
    const int64_t first = before > 0 ? 2 : 1;
    const std::vector<int64_t> wanted = {0, 2, 5, 6, 7, 8};
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(raw.OriginOf(i).line, first + wanted[i]) << i;
      EXPECT_EQ(raw.OriginOf(i).file, 7);
    }
  }
  // Without quotes they are characters like others.
  EXPECT_EQ(ReadLines(folder.Write("b", "\"a\nb\n"), 10), (Strings{"\"a\n", "b\n"}));
}

TEST(LineStream, AQuoteThatIsNotClosedIsAnErrorWhereItOpens) {
  TempFolder folder;
  const auto error_of = [&](const std::string& text) {
    const std::string path = folder.Write("a", text);
    auto lines = LineStream::Open(path, &kNotCancelled, {',', true}, 0);
    RawBatch raw;
    const absl::Status status = ReadInto(lines->get(), 100, &raw);
    return absl::StrReplaceAll(status.message(), {{path, "a"}});
  };
  const std::string open =
      ": a quote opens here, and is not closed before the end of the file; quotes: false reads "
      "quotes as they are";
  EXPECT_EQ(error_of("1,2\n3,\"4\n5,6\n7,8\n"), "a:2" + open);
  // A row of several lines, of which the second opens it.
  EXPECT_EQ(error_of("1,2\n\"3\n4\",\"5\n6,7\n"), "a:3" + open);
  EXPECT_EQ(error_of("1,\"2\"\"\n3,4"), "a:1" + open);
  // The last line alone is a malformed row, as any other.
  EXPECT_EQ(error_of("1,2\n3,\"4\n"), "");
  EXPECT_EQ(error_of("1,2\n3,\"4"), "");
  EXPECT_EQ(error_of("1\n\"x\n2,\"y\n" + std::string(kMaxLineBytes, 'x') + "\n"),
            "a:4: the line is longer than 16777216 bytes");
  EXPECT_EQ(error_of("1\n2,\"y\n" + std::string(kMaxLineBytes, 'x') + "\n"),
            "a:2: the line is longer than 16777216 bytes; the quote that opens in line 2 is not "
            "closed");
}

TEST(LineStream, AByteOrderMarkIsNoText) {
  TempFolder folder;
  auto lines = OpenLines(folder.Write("a", "\xef\xbb\xbfx\n"));
  RawBatch raw;
  ASSERT_TRUE(ReadInto(lines.get(), 1, &raw).ok());
  EXPECT_EQ(LinesOf(raw), (Strings{"x\n"}));
}

TEST(LineStream, TooLongALineIsNamed) {
  TempFolder folder;
  const std::string path = folder.Write("a", "a\n" + std::string(kMaxLineBytes, 'x') + "\n");
  auto lines = OpenLines(path);
  RawBatch raw;
  EXPECT_EQ(ReadInto(lines.get(), 10, &raw),
            absl::InvalidArgumentError(path + ":2: the line is longer than 16777216 bytes"));
}

TEST(LineStream, CancelEndsReading) {
  TempFolder folder;
  const std::string path = folder.Write("a", "a\n");
  const std::atomic<bool> cancelled{true};
  auto lines = LineStream::Open(path, &cancelled);
  ASSERT_TRUE(lines.ok());
  RawBatch raw;
  EXPECT_EQ(ReadInto(lines->get(), 1, &raw).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace thermocline
