#include "common/arrow/parquet.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/arrow/testing/test_parquet.h"
#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Kind = ParquetColumn::Kind;

class ParquetTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RequireArrow("this test").ok()) GTEST_SKIP() << RequireArrow("this test").message();
    std::string pattern = testing::TempDir() + "/parquet_XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name = "t.parquet") const { return folder_ + "/" + name; }

  static std::unique_ptr<ParquetFile> Open(const std::string& path) {
    absl::StatusOr<std::unique_ptr<ParquetFile>> file = ParquetFile::Open(path);
    CHECK(file.ok());
    return *std::move(file);
  }

  // The texts of one column from `row` on, reading `at_a_time` rows at most; null is "-", a list
  // stands in brackets.
  static std::vector<std::string> Texts(const std::string& path, int column = 0, int64_t row = 0,
                                        int64_t at_a_time = 1000) {
    const std::unique_ptr<ParquetFile> file = Open(path);
    CHECK(file->Seek(row, {column}).ok());
    std::vector<std::string> texts;
    for (;;) {
      std::vector<ParquetCells> cells;
      const absl::StatusOr<int64_t> rows = file->Read(at_a_time, &cells);
      CHECK(rows.ok());
      if (*rows == 0) return texts;
      for (int64_t r = 0; r < *rows; ++r) {
        texts.push_back(TextOf(file->columns()[column], cells[0], r));
      }
    }
  }

  static std::string TextOf(const ParquetColumn& column, const ParquetCells& cells, int64_t row) {
    if (!column.is_list) return CellText(column, cells, row);
    std::vector<std::string> texts;
    for (int32_t c = cells.offsets[row]; c < cells.offsets[row + 1]; ++c) {
      texts.push_back(CellText(column, cells, c));
    }
    return absl::StrCat("[", absl::StrJoin(texts, " "), "]");
  }

  static std::string CellText(const ParquetColumn& column, const ParquetCells& cells,
                              int64_t cell) {
    if (cells.index(cell) < 0) return "-";
    std::string text;
    AppendParquetText(column, *cells.values, cells.index(cell), &text);
    return text;
  }

  // The texts of one column that WriteTestParquet writes.
  std::vector<std::string> TextsOf(const std::string& type, const std::string& json) const {
    WriteTestParquet(Path(), {{"c", type, json}});
    return Texts(Path());
  }

  std::string folder_;
};

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

TEST(RequireArrowTest, ABuildWithoutArrowSaysHowToGetIt) {
  const absl::Status status = RequireArrow("a.parquet");
  if (status.ok()) GTEST_SKIP() << "this build has Arrow";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a.parquet"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("deploy/setup.sh"));
  EXPECT_EQ(ParquetFile::Open("a.parquet").status(), status);
  EXPECT_EQ(ParquetWriter::Create("a.parquet").status(), status);
}

TEST_F(ParquetTest, ValuesOfEveryTypeHaveTheTextOfACsvFile) {
  EXPECT_THAT(TextsOf("int64", "[1, null, -9223372036854775808]"),
              ElementsAre("1", "-", "-9223372036854775808"));
  EXPECT_THAT(TextsOf("uint64", "[18446744073709551615]"), ElementsAre("18446744073709551615"));
  EXPECT_THAT(TextsOf("uint32", "[4294967295, 7]"), ElementsAre("4294967295", "7"));
  EXPECT_THAT(TextsOf("int8", "[-128]"), ElementsAre("-128"));
  EXPECT_THAT(TextsOf("bool", "[true, false, null]"), ElementsAre("1", "0", "-"));
  EXPECT_THAT(TextsOf("float", "[0.1, 16777216, null, 2.5]"),
              ElementsAre("0.1", "16777216", "-", "2.5"));
  EXPECT_THAT(TextsOf("double", "[0.1, 100000, 1e16, 0.00001, 1, -0.5]"),
              ElementsAre("0.1", "100000", "1e+16", "0.00001", "1", "-0.5"));
  EXPECT_THAT(TextsOf("string", R"(["a", "", null, "a"])"), ElementsAre("a", "", "-", "a"));
  EXPECT_THAT(TextsOf("dictionary", R"(["x", null, "x"])"), ElementsAre("x", "-", "x"));
  EXPECT_THAT(TextsOf("date", "[0, -1, 20779]"),
              ElementsAre("1970-01-01", "1969-12-31", "2026-11-22"));
  EXPECT_THAT(TextsOf("timestamp[us]", "[0, 1500000, -1, 1795391999000000]"),
              ElementsAre("1970-01-01 00:00:00", "1970-01-01 00:00:01.500000",
                          "1969-12-31 23:59:59.999999", "2026-11-22 23:59:59"));
  EXPECT_THAT(TextsOf("timestamp[ns]", "[1]"), ElementsAre("1970-01-01 00:00:00.000000001"));
}

TEST_F(ParquetTest, ListsMayBeNullEmptyAndHoldNulls) {
  EXPECT_THAT(TextsOf("list of int64", "[[1, 2], null, [], [null], [3, null]]"),
              ElementsAre("[1 2]", "[]", "[]", "[-]", "[3 -]"));
  EXPECT_THAT(TextsOf("list of string", R"([["a", "b"], ["a"]])"), ElementsAre("[a b]", "[a]"));
}

TEST_F(ParquetTest, SaysWhatColumnsHold) {
  WriteTestParquet(Path(), {{"a", "int32", "[1]"},
                            {"b", "list of float", "[[1]]"},
                            {"c", "time[us]", "[1]"},
                            {"d", "timestamp[ms]", "[1]"},
                            {"e", "decimal", "[\"1.50\"]"},
                            {"f", "two of float", "[[1, 2]]"},
                            {"g", "map", "[[[\"a\", 1]]]"},
                            {"h", "list of list of int64", "[[[1]]]"},
                            {"i", "list of map", "[[[[\"a\", 1]]]]"}});
  const std::unique_ptr<ParquetFile> file = Open(Path());
  ASSERT_EQ(file->columns().size(), 11u);
  std::vector<std::string> others;
  for (size_t i = 5; i < 11; ++i) {
    const ParquetColumn& column = file->columns()[i];
    others.push_back(absl::StrCat(column.name, ": ", column.type,
                                  column.kind == Kind::kUnsupported ? ", not read" : ""));
  }
  EXPECT_THAT(others,
              ElementsAre("f: list of float32", "g: map, not read", "g: map, not read",
                          "h: list of lists of int64, not read", "i.list.element: map, not read",
                          "i.list.element: map, not read"));
  EXPECT_EQ(file->columns()[0].name, "a");
  EXPECT_EQ(file->columns()[0].kind, Kind::kInteger);
  EXPECT_EQ(file->columns()[0].type, "int32");
  EXPECT_EQ(file->columns()[1].name, "b");
  EXPECT_EQ(file->columns()[1].kind, Kind::kFloat);
  EXPECT_TRUE(file->columns()[1].is_list);
  EXPECT_EQ(file->columns()[1].type, "list of float32");
  EXPECT_EQ(file->columns()[2].kind, Kind::kUnsupported);
  EXPECT_EQ(file->columns()[3].kind, Kind::kTimestamp);
  EXPECT_EQ(file->columns()[3].units_per_second, 1000);
  EXPECT_EQ(file->columns()[4].kind, Kind::kUnsupported);
}

// Rows of several pages and row groups, with and without dictionaries, from any row on and in
// pieces of any size, are the same.
TEST_F(ParquetTest, ReadsFromAnyRowInPiecesOfAnySize) {
  constexpr int kRows = 1000;
  std::vector<std::string> plain, lists, plain_texts, list_texts;
  for (int i = 0; i < kRows; ++i) {
    plain.push_back(i % 7 == 3 ? "null" : absl::StrCat("\"v", i % 90, "\""));
    plain_texts.push_back(i % 7 == 3 ? "-" : absl::StrCat("v", i % 90));
    std::vector<std::string> cells;
    for (int j = 0; j < i % 5; ++j) cells.push_back(absl::StrCat(i * 10 + j));
    lists.push_back(absl::StrCat("[", absl::StrJoin(cells, ","), "]"));
    list_texts.push_back(absl::StrCat("[", absl::StrJoin(cells, " "), "]"));
  }
  for (const bool dictionary : {true, false}) {
    ParquetTestOptions options;
    options.row_group_rows = 300;
    options.dictionary = dictionary;
    options.page_bytes = 256;
    WriteTestParquet(Path(),
                     {{"s", "string", absl::StrCat("[", absl::StrJoin(plain, ","), "]")},
                      {"l", "list of int64", absl::StrCat("[", absl::StrJoin(lists, ","), "]")}},
                     options);
    EXPECT_THAT(Open(Path())->row_group_rows(), ElementsAre(300, 300, 300, 100));
    for (const int64_t from : {0, 1, 299, 300, 555, 999, 1000}) {
      for (const int64_t at_a_time : {1, 7, 64, 1000}) {
        EXPECT_EQ(Texts(Path(), 0, from, at_a_time),
                  std::vector<std::string>(plain_texts.begin() + from, plain_texts.end()));
        EXPECT_EQ(Texts(Path(), 1, from, at_a_time),
                  std::vector<std::string>(list_texts.begin() + from, list_texts.end()));
      }
    }
  }
}

TEST_F(ParquetTest, ACutOrDamagedFileIsDataLoss) {
  WriteTestParquet(Path(), {{"c", "int64", "[1, 2, 3]"}});
  const std::string bytes = Bytes(Path());
  const auto open_of = [&](const std::string& content) {
    std::ofstream(Path("damaged"), std::ios::binary) << content;
    return ParquetFile::Open(Path("damaged")).status();
  };
  for (const size_t size : {size_t{0}, size_t{3}, bytes.size() / 2, bytes.size() - 1}) {
    const absl::Status status = open_of(bytes.substr(0, size));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("damaged")));
  }
  EXPECT_EQ(open_of("a,b\n1,2\n").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParquetFile::Open(Path("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ParquetTest, ADamagedPageIsDataLossThatNamesRowGroupAndColumn) {
  ParquetTestOptions options;
  options.row_group_rows = 2;
  WriteTestParquet(Path(), {{"c", "string", R"(["aaaa", "bbbb", "cccc", "dddd"])"}}, options);
  std::string bytes = Bytes(Path());
  const size_t at = bytes.find("cccc");
  ASSERT_NE(at, bytes.npos);
  bytes[at - 1] = '\x7f';  // The length of the text before it.
  std::ofstream(Path("damaged"), std::ios::binary) << bytes;
  const std::unique_ptr<ParquetFile> file = Open(Path("damaged"));
  ASSERT_TRUE(file->Seek(0, {0}).ok());
  std::vector<ParquetCells> cells;
  ASSERT_TRUE(file->Read(10, &cells).ok());
  const absl::Status status = file->Read(10, &cells).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row group 1, column 'c'"));
}

// `bytes` with other numbers in the footer: thrift's field header of an int64 and the number 61,
// where it occurs for the `place`-th time, gets `value`.
std::string WithFooterNumber(const std::string& bytes, int place, int64_t value) {
  uint32_t size;
  std::memcpy(&size, bytes.data() + bytes.size() - 8, sizeof(size));
  std::string footer = bytes.substr(bytes.size() - 8 - size, size);
  const std::string number = "\x16\x7a";
  size_t at = footer.find(number);
  for (; place > 0; --place) at = footer.find(number, at + 1);
  std::string varint;
  uint64_t zigzag = static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
  for (; zigzag >= 0x80; zigzag >>= 7) varint += static_cast<char>(zigzag | 0x80);
  varint += static_cast<char>(zigzag);
  footer.replace(at + 1, 1, varint);
  const auto new_size = static_cast<uint32_t>(footer.size());
  return bytes.substr(0, bytes.size() - 8 - size) + footer +
         std::string(reinterpret_cast<const char*>(&new_size), sizeof(new_size)) + "PAR1";
}

TEST_F(ParquetTest, NumbersOfRowsThatCantBeAreDataLoss) {
  ParquetTestOptions options;
  options.row_group_rows = 61;
  const std::string values = absl::StrJoin(std::vector<int>(122, 7), ",");
  WriteTestParquet(Path(), {{"c", "int64", absl::StrCat("[", values, "]")}}, options);
  const std::string bytes = Bytes(Path());
  const auto open = [&](const std::string& content) {
    std::ofstream(Path("damaged"), std::ios::binary) << content;
    return ParquetFile::Open(Path("damaged")).status();
  };
  // The first and third such numbers are the values of the groups' chunks.
  ASSERT_TRUE(open(WithFooterNumber(bytes, 1, 60)).ok());
  for (const int64_t rows : {int64_t{-1}, int64_t{-61}, INT64_MIN}) {
    const absl::Status status = open(WithFooterNumber(bytes, 1, rows));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("row group 0 has ", rows, " rows")));
  }
  EXPECT_TRUE(open(WithFooterNumber(bytes, 1, INT64_MAX - 61)).ok());
  EXPECT_EQ(open(WithFooterNumber(bytes, 1, INT64_MAX)).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ParquetTest, ListsThatAreTooLongToNumberAreAnErrorThatNamesTheRow) {
  ParquetTestOptions options;
  options.row_group_rows = 3;
  WriteTestParquet(Path(), {{"c", "list of int64", "[[1], [2], [3], [4, 5], [6, 7], [8]]"}},
                   options);
  const auto read = [&](int64_t max_list_values) {
    const auto file = ParquetFile::Open(Path(), nullptr, max_list_values);
    CHECK(file.ok() && (*file)->Seek(0, {0}).ok());
    std::vector<ParquetCells> cells;
    CHECK((*file)->Read(10, &cells).ok());
    return (*file)->Read(10, &cells).status();
  };
  EXPECT_TRUE(read(5).ok());
  const absl::Status status = read(3);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row group 1, row 1, column 'c'"));
}

TEST_F(ParquetTest, WhatIsWrittenIsRead) {
  absl::StatusOr<std::unique_ptr<ParquetWriter>> writer = ParquetWriter::Create(Path());
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE((*writer)
                    ->Append({{"row", std::vector<int64_t>{i, i + 10}},
                              {"score", std::vector<float>{0.25f, 0.5f}},
                              {"exact", std::vector<double>{0.1, 0.2}},
                              {"user", std::vector<std::string>{"a", "b"}}})
                    .ok());
  }
  EXPECT_FALSE(std::filesystem::exists(Path()));
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_THAT(Open(Path())->row_group_rows(), ElementsAre(2, 2));
  EXPECT_THAT(Texts(Path(), 0), ElementsAre("0", "10", "1", "11"));
  EXPECT_THAT(Texts(Path(), 1), ElementsAre("0.25", "0.5", "0.25", "0.5"));
  EXPECT_THAT(Texts(Path(), 2), ElementsAre("0.1", "0.2", "0.1", "0.2"));
  EXPECT_THAT(Texts(Path(), 3), ElementsAre("a", "b", "a", "b"));
}

TEST_F(ParquetTest, AWriterThatIsNotClosedLeavesNothing) {
  ASSERT_TRUE((*ParquetWriter::Create(Path()))->Append({{"a", std::vector<int64_t>{1}}}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_EQ(ParquetWriter::Create(folder_ + "/none/t.parquet").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace thermocline
