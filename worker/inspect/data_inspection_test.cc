#include "worker/inspect/data_inspection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/arrow/parquet.h"
#include "common/arrow/testing/test_parquet.h"
#include "common/disk/npy.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class DataInspectionTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    return folder_.Write(name, text);
  }

  static Json Inspect(const std::vector<std::string>& paths, int64_t max_rows = 0,
                      const LayoutHints& hints = {}) {
    const auto figures = InspectData({paths, hints, max_rows, 1}, {});
    EXPECT_TRUE(figures.ok()) << figures.status();
    const auto by_threads = InspectData({paths, hints, max_rows, 3}, {});
    if (figures.ok() && by_threads.ok()) {
      EXPECT_EQ(by_threads->dump(), figures->dump());
    }
    EXPECT_EQ(by_threads.status(), figures.status());
    return figures.ok() ? *figures : Json();
  }
  static absl::Status ErrorOf(const std::vector<std::string>& paths,
                              const LayoutHints& hints = {}) {
    return InspectData({paths, hints, 0}, {}).status();
  }
  static Json Column(const Json& figures, const std::string& name) {
    for (const Json& column : figures.at("columns")) {
      if (column.at("name") == name) return column;
    }
    ADD_FAILURE() << "no column " << name;
    return Json();
  }

  const TempFolder folder_;
};

// 40 rows with columns of every type, and a header.
std::string ShopLog() {
  std::string text = "when,user,code,price,tags,seen_items,note,click\n";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(
        &text, absl::StrFormat("2026-11-%02d 10:00:00,%d,%s,%s,%s,1|2|3,\"x, %d\",%d\n", i % 28 + 1,
                               1000 + i % 7, i % 2 ? "00aF" : "12cd", i % 4 == 0 ? "" : "2.5",
                               i % 2 ? "a|b" : "c", i, i % 5 == 0 ? 1 : 0));
  }
  return text;
}

TEST_F(DataInspectionTest, GuessesEveryType) {
  const Json figures = Inspect({Write("shop.csv", ShopLog())});
  EXPECT_EQ(figures.at("format"), "csv");
  EXPECT_EQ(figures.at("separator"), ",");
  EXPECT_EQ(figures.at("header"), true);
  EXPECT_EQ(figures.at("rows"), 40);
  EXPECT_EQ(figures.at("complete"), true);
  EXPECT_EQ(figures.at("malformed_rows"), 0);
  EXPECT_EQ(Column(figures, "when").at("type"), "time");
  EXPECT_EQ(Column(figures, "user").at("type"), "integer");
  EXPECT_EQ(Column(figures, "user").at("distinct"), 7);
  EXPECT_EQ(Column(figures, "code").at("type"), "hex");
  EXPECT_EQ(Column(figures, "price").at("type"), "number");
  EXPECT_EQ(Column(figures, "price").at("missing"), 10);
  EXPECT_EQ(Column(figures, "price").at("numbers").at("mean"), 2.5);
  EXPECT_EQ(Column(figures, "tags").at("type"), "list");
  EXPECT_EQ(Column(figures, "tags").at("distinct"), 3);
  EXPECT_EQ(Column(figures, "seen_items").at("separator"), "|");
  EXPECT_EQ(Column(figures, "note").at("type"), "string");
  EXPECT_EQ(Column(figures, "click").at("texts"), Json({{"0", 32}, {"1", 8}}));
}

TEST_F(DataInspectionTest, FindsTheSeparatorAndWhetherThereIsAHeader) {
  const Json tabs = Inspect({Write("a.tsv", "1\tx\t5\n0\ty\t6\n0\tz\t7\n")});
  EXPECT_EQ(tabs.at("separator"), "\t");
  EXPECT_EQ(tabs.at("header"), false);
  EXPECT_EQ(tabs.at("columns")[1].at("name"), "col2");
  const Json semicolons = Inspect({Write("b.csv", "label;id\n1;2\n0;3\n")});
  EXPECT_EQ(semicolons.at("separator"), ";");
  EXPECT_EQ(semicolons.at("header"), true);
  const Json named = Inspect({Write("c.csv", "1,a\n0,b\n")}, 0, {"", {"y", "x"}});
  EXPECT_EQ(named.at("header"), false);
  EXPECT_EQ(named.at("columns")[0].at("name"), "y");
  EXPECT_EQ(Inspect({Write("d.csv.gz", Gzip("label;id\n1;2\n0;3\n"))}).at("rows"), 2);
  EXPECT_EQ(Inspect({Write("e.csv.zst", Zstd("label;id\n1;2\n0;3\n"))}).at("rows"), 2);
}

TEST_F(DataInspectionTest, AHeaderIsFoundWhateverItsNamesAreMadeOf) {
  for (const char* header :
       {" user, price, click", "#user,price,click", "$user,1st_price,click", "2024,price,click",
        "\xd0\xba\xd1\x82\xd0\xbe,\xd1\x86\xd0\xb5\xd0\xbd\xd0\xb0,"
        "\xd0\xba\xd0\xbb\xd0\xb8\xd0\xba",
        "\"user\",\"price\",\"click\"", "-user-,(price),click?"}) {
    const Json figures =
        Inspect({Write("log.csv", absl::StrCat(header, "\n17,1.5,1\n18,2.5,0\n19,3.5,0\n"))});
    EXPECT_EQ(figures.at("header"), true) << header;
    EXPECT_EQ(figures.at("rows"), 3) << header;
    EXPECT_EQ(figures.at("columns")[2].at("texts"), Json({{"0", 2}, {"1", 1}})) << header;
  }
  // Without a number in any column.
  std::string texts = "3rd,#what\n";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&texts, i % 3 ? "x,yes\n" : "y,no\n");
  EXPECT_EQ(Inspect({Write("texts.csv", texts)}).at("header"), true);
}

TEST_F(DataInspectionTest, ARowIsNoHeader) {
  EXPECT_EQ(Inspect({Write("gap.csv", "u1,,1\nu2,2.5,0\nu3,3.5,0\n")}).at("header"), false);
  // Ids of one length, and few texts: the first row has them, too.
  std::string texts = "abcd1234,view\n";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&texts, absl::StrFormat("%08x,", 7919 * i), i % 3 ? "view\n" : "buy\n");
  }
  EXPECT_EQ(Inspect({Write("texts.csv", texts)}).at("header"), false);
}

TEST_F(DataInspectionTest, TheIndexOfADataFrameHasNoName) {
  const Json figures = Inspect({Write("index.csv", ",user,click\n0,a,1\n1,b,0\n")});
  EXPECT_EQ(figures.at("header"), true);
  EXPECT_EQ(figures.at("rows"), 2);
  EXPECT_EQ(figures.at("columns")[0].at("name"), "");
  // Nor have the columns, which are counted then.
  const Json counted = Inspect({Write("counted.csv", ",0,1\n0,7,1\n1,8,0\n2,9,0\n")});
  EXPECT_EQ(counted.at("header"), true);
  EXPECT_EQ(counted.at("columns")[1].at("name"), "0");
}

TEST_F(DataInspectionTest, SeveralFilesAreOneLogAndMalformedRowsAreCounted) {
  const std::string a = Write("a.csv", "y,x\n1,2\n0,3\n1,9\n0,9\n1,9\n0,9\n1,9\n0,9\n1,9\n0,9\n");
  const std::string b =
      Write("b.csv", "y,x\n0,4\n0,9\n1,9\n0,9\n1,9\n0,9\n1,9\n0,9\n1,9\n7\n0,9\n");
  const Json figures = Inspect({a, b});
  EXPECT_EQ(figures.at("rows"), 21);
  EXPECT_EQ(figures.at("malformed_rows"), 1);
  EXPECT_EQ(figures.at("first_malformed"), b + ":11: 1 columns, not 2");
  EXPECT_EQ(Column(figures, "x").at("rows"), 20);
  EXPECT_EQ(Column(figures, "x").at("distinct"), 4);
  const Json part = Inspect({a, b}, 3);
  EXPECT_EQ(part.at("rows"), 3);
  EXPECT_EQ(part.at("complete"), false);
  EXPECT_EQ(Inspect({a}, 10).at("complete"), true);
}

// More rows than are read at a time, with lines that are no rows among them: also by several
// threads, which Inspect() compares.
TEST_F(DataInspectionTest, RowsInTheirOrderByAnyThreads) {
  std::string text = "id,seen,note,click\n";
  for (int i = 0; i < 3 * 1024; ++i) {
    absl::StrAppend(&text, i * 7919 % 1000, ".0,", 1000000 + i,
                    i % 100 == 99 ? "" : absl::StrCat(",\"a, \"\"", i % 9, "\"\"\n\",", i % 2),
                    "\n");
  }
  const std::string path = Write("long.csv", text);
  const Json all = Inspect({path});
  EXPECT_EQ(all.at("rows"), 3072);
  EXPECT_EQ(all.at("complete"), true);
  EXPECT_EQ(all.at("malformed_rows"), 30);
  EXPECT_EQ(all.at("first_malformed"), path + ":200: 2 columns, not 4");
  EXPECT_EQ(Column(all, "seen").at("distinct"), 3042);
  EXPECT_EQ(Column(all, "note").at("texts").size(), 9u);
  EXPECT_EQ(Column(all, "id").at("type"), "number");
  EXPECT_EQ(Column(all, "id").at("numbers").at("whole_share"), 1);
  for (const int64_t rows : {1, 1024, 1025, 2048, 3072, 4000}) {
    const Json part = Inspect({path}, rows);
    EXPECT_EQ(part.at("rows"), std::min<int64_t>(rows, 3072));
    EXPECT_EQ(part.at("complete"), rows >= 3072);
  }
}

TEST_F(DataInspectionTest, TextsThatAreAskedForAreCountedAmongMany) {
  std::string text = "id,event\n";
  for (int i = 0; i < 300; ++i) absl::StrAppend(&text, i, ",e", i % 100, "\n");
  InspectionOptions options{{Write("events.csv", text)}, {}, 0};
  options.counted = {"e7", "none"};
  const auto figures = InspectData(options, {});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(Column(*figures, "event").at("counted"), Json({{"e7", 3}, {"none", 0}}));
}

TEST_F(DataInspectionTest, TimesTellTheirFormTheirOrderAndWhereTheLatestBegin) {
  std::string text = "hour,click\n";
  for (int day = 1; day <= 30; ++day) {
    absl::StrAppend(&text, "141", day % 2 ? "0" : "1", day < 10 ? "0" : "", day, "07,0\n");
  }
  const Json time = Column(Inspect({Write("avazu.csv", text)}), "hour").at("time");
  EXPECT_EQ(time.at("form"), "YYMMDDhh");
  EXPECT_EQ(time.at("first"), "2014-10-01 07:00:00");
  EXPECT_EQ(time.at("last"), "2014-11-30 07:00:00");
  EXPECT_EQ(time.at("hour_start"), 6);
  EXPECT_GT(time.at("descents"), 10);
  EXPECT_EQ(time.at("test_from"), "14112407");
}

TEST_F(DataInspectionTest, SecondsOfNineDigitsAreTimesAndIdsAreNot) {
  std::string text = "seen,code,click\n";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&text, 874724710 + 86400 * i, ",", 640000000 + 7654321 * i, ",", i / 20, "\n");
  }
  const Json figures = Inspect({Write("old.csv", text)});
  EXPECT_EQ(Column(figures, "seen").at("type"), "time");
  EXPECT_EQ(Column(figures, "seen").at("time").at("first"), "1997-09-20 03:05:10");
  EXPECT_EQ(Column(figures, "code").at("type"), "integer");
  EXPECT_EQ(Column(figures, "click").at("text_changes"), 1);
}

TEST_F(DataInspectionTest, TextsOfMissingNumbersMakeNoColumnText) {
  std::string text = "price,id,country,y\nn/a,NULL,NA,1\n";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&text, i % 5 ? "1.5" : "nan", ",", i % 4 ? absl::StrCat(i) : "\\N", ",",
                    i % 3 ? "DE" : "NA", ",", i % 2, "\n");
  }
  const Json figures = Inspect({Write("gaps.csv", text)});
  EXPECT_EQ(figures.at("header"), true);
  EXPECT_EQ(Column(figures, "price").at("type"), "number");
  EXPECT_EQ(Column(figures, "price").at("missing"), 9);
  EXPECT_EQ(Column(figures, "id").at("type"), "integer");
  EXPECT_EQ(Column(figures, "id").at("missing"), 11);
  EXPECT_EQ(Column(figures, "id").at("distinct"), 30);
  // In a column of text they are values.
  EXPECT_EQ(Column(figures, "country").at("type"), "string");
  EXPECT_EQ(Column(figures, "country").at("missing"), 0);
  EXPECT_EQ(Column(figures, "country").at("distinct"), 2);
  EXPECT_EQ(Column(figures, "country").at("texts"), Json({{"DE", 26}, {"NA", 15}}));
}

TEST_F(DataInspectionTest, HugeNumbersHaveFigures) {
  const Json huge = Column(Inspect({Write("huge.csv", "x,y\n1e300,1\n-1e300,0\n1e308,0\n")}), "x");
  EXPECT_EQ(huge.at("numbers").at("max"), 1e308);
  EXPECT_EQ(huge.at("numbers").at("std"), 0);
}

TEST_F(DataInspectionTest, NpyFoldersHaveTheirColumns) {
  const std::string& folder = folder_.path();
  const auto write = [&](const char* name, const char* dtype, const std::vector<int64_t>& row,
                         const void* data) {
    auto writer = NpyWriter::Create(folder + "/train_" + name + ".npy", dtype, row);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(data, 3).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  };
  const float dense[] = {1, 2, 3};
  const int64_t sparse[] = {7, 8, 7, 9, 7, 9};
  const int32_t labels[] = {0, 1, 1};
  write("dense", "<f4", {1}, dense);
  write("sparse", "<i8", {2}, sparse);
  write("labels", "<i4", {}, labels);
  const Json figures = Inspect({folder});
  EXPECT_EQ(figures.at("format"), "npy");
  EXPECT_EQ(figures.at("rows"), 3);
  EXPECT_EQ(figures.at("has_test_rows"), false);
  EXPECT_EQ(Column(figures, "I1").at("numbers").at("mean"), 2);
  EXPECT_EQ(Column(figures, "C1").at("distinct"), 1);
  EXPECT_EQ(Column(figures, "C2").at("distinct"), 2);
  EXPECT_NEAR(Column(figures, "label").at("numbers").at("mean").get<double>(), 2.0 / 3, 1e-9);
  const absl::Status error = ErrorOf({folder + "/train_dense.npy"});
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("name the one folder"));
  const std::string note = Write("note.csv", "1,2\n");
  EXPECT_EQ(Inspect({folder}).at("rows"), 3);
  EXPECT_THAT(ErrorOf({note, folder}).message(), HasSubstr("name the one folder"));
}

TEST_F(DataInspectionTest, NpyFoldersMayHaveSeveralLabelsAndLists) {
  const std::string& folder = folder_.path();
  const auto write = [&](const char* name, const char* dtype, const std::vector<int64_t>& row,
                         const void* data, int64_t rows) {
    auto writer = NpyWriter::Create(folder + "/train_" + name + ".npy", dtype, row);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(data, rows).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  };
  const float labels[] = {0, 1, 1, NAN, 1, 1, NAN, NAN};  // The last row has none.
  const int32_t sparse[] = {7, 7, 8, 8};
  const int64_t values[] = {7, 8, 7, 9};
  const int32_t offsets[] = {0, 3, 3, 4, 4};
  write("labels", "<f4", {2}, labels, 4);
  write("sparse", "<i4", {1}, sparse, 4);
  write("hist_item_values", "<i8", {}, values, 4);
  write("hist_item_offsets", "<i4", {}, offsets, 5);
  InspectionOptions options;
  options.paths = {folder};
  options.hints.columns = {"item"};
  const auto figures = InspectData(options, nullptr);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->at("files"), 4);
  EXPECT_EQ(figures->at("malformed_rows"), 1);
  EXPECT_EQ(figures->at("label_columns"), 2);
  EXPECT_EQ(Column(*figures, "label_1").at("missing"), 0);
  EXPECT_EQ(Column(*figures, "label_2").at("missing"), 1);
  EXPECT_EQ(Column(*figures, "label_2").at("numbers").at("mean"), 1);
  EXPECT_EQ(Column(*figures, "item").at("distinct"), 2);
  const Json list = Column(*figures, "hist_item");
  EXPECT_EQ(list.at("type"), "sequence");
  EXPECT_EQ(list.at("separator"), "");
  EXPECT_EQ(list.at("id"), "integer");
  EXPECT_EQ(list.at("longest_list"), 3);
  EXPECT_EQ(list.at("missing"), 1);
  EXPECT_EQ(list.at("values"), 4);
  EXPECT_EQ(list.at("distinct"), 3);
  options.hints.columns = {"item", "user"};
  EXPECT_THAT(InspectData(options, nullptr).status().message(),
              HasSubstr("--columns names 2 columns, and " + folder + "/train_sparse.npy has 1"));
}

// The log's own names, others, and none.
TEST_F(DataInspectionTest, NamesForColumnsOfAFileWithAHeaderAreRefused) {
  const std::string path = Write("log.csv", "click,user\n1,7\n0,8\n1,9\n");
  for (const LayoutHints& hints :
       {LayoutHints{"", {"click", "user"}}, LayoutHints{"", {"y", "u"}}}) {
    const absl::Status error = ErrorOf({path}, hints);
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error.message(),
              path +
                  ":1: the first line looks like a header ('click,user'), and --columns names "
                  "the columns of files without one; leave --columns out, or the line (tail -n "
                  "+2)");
  }
  const std::string rows = Write("rows.csv", "1,x\n0,8\n1,9\n");  // A number is text once.
  EXPECT_EQ(Inspect({rows}, 0, {"", {"y", "u"}}).at("rows"), 3);
}

TEST_F(DataInspectionTest, AColumnSaysWhichOthersFollowFromIt) {
  std::string text = "like,top,user\n";
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&text, i % 2, ",", i % 6 == 3 ? 1 : 0, ",", i % 7, "\n");
  }
  const Json figures = Inspect({Write("likes.csv", text)});
  EXPECT_EQ(Column(figures, "top").at("implies"),
            Json::parse(R"([{"column": "like", "rows": 500, "but": 0}])"));
  EXPECT_FALSE(Column(figures, "like").contains("implies"));
  EXPECT_FALSE(Column(figures, "user").contains("implies"));
}

TEST_F(DataInspectionTest, WhatIsNoLogIsRefused) {
  const auto expect = [&](const std::string& path, absl::StatusCode code, const char* what) {
    const absl::Status error = ErrorOf({path});
    EXPECT_EQ(error.code(), code) << error;
    EXPECT_THAT(error.message(), HasSubstr(what));
    EXPECT_THAT(error.message(), HasSubstr(path));
  };
  expect("/no/such/log.csv", absl::StatusCode::kNotFound, "No such file");
  expect(Write("empty.csv", ""), absl::StatusCode::kInvalidArgument, "is empty");
  expect(Write("header.csv", "label,user\n"), absl::StatusCode::kInvalidArgument,
         "no row after the header");
  expect(Write("one.csv", "1\n2\n3\n"), absl::StatusCode::kInvalidArgument, "one column only");
  expect(Write("binary.bin", std::string("\x7f"
                                         "ELF\x02\0\0,\0,\n",
                                         11)),
         absl::StatusCode::kInvalidArgument, "is no text");
  expect(Write("rows.csv", "1,2\n1,2,3\n1,2,3,4\n1\n"), absl::StatusCode::kInvalidArgument,
         "different numbers of columns");
  // What `train` says of such headers.
  expect(Write("twice.csv", "user,price,user\n1,2,1\n2,3,0\n"), absl::StatusCode::kInvalidArgument,
         ":1: column 3 of the header is 'user', as is column 1");
  expect(Write("unnamed.csv", "user,,click\n1,2,1\n2,3,0\n"), absl::StatusCode::kInvalidArgument,
         ":1: column 2 of the header has no name");
  expect(Write("years.csv", "2023,2024,click\n7,8,1\n9,9,0\n"), absl::StatusCode::kInvalidArgument,
         ":1: is the line a header? Column 3 is 'click'");
  const std::string a = Write("a.csv", "1,2\n0,3\n"), b = Write("b.tsv", "1\t2\t3\n0\t3\t4\n");
  const absl::Status mixed = ErrorOf({a, b});
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(mixed.message(), HasSubstr(b + ": its rows have 1 columns"));
  EXPECT_EQ(ErrorOf({a}, {"", {"only"}}).code(), absl::StatusCode::kInvalidArgument);
}

// ---- files that were joined, and folders named by keys

TEST_F(DataInspectionTest, AHeaderThatStandsAgainIsNoRow) {
  std::string text = ShopLog() + ShopLog();
  const Json figures = Inspect({Write("joined.csv", text)});
  EXPECT_EQ(figures.at("rows"), 80);
  EXPECT_EQ(figures.at("malformed_rows"), 0);
  EXPECT_EQ(figures.at("repeated_headers"), 1);
  EXPECT_EQ(Column(figures, "user").at("type"), "integer");
}

TEST_F(DataInspectionTest, KeysOfFoldersAreColumns) {
  for (const char* day : {"t/day=2026-11-20", "t/day=2026-11-21"}) {
    std::filesystem::create_directories(folder_.path() + "/" + day);
    Write(absl::StrCat(day, "/a.csv"), ShopLog());
  }
  const Json figures = Inspect({folder_.path() + "/t"});
  EXPECT_EQ(figures.at("rows"), 80);
  EXPECT_EQ(figures.at("malformed_rows"), 0);
  const Json day = Column(figures, "day");
  EXPECT_EQ(day.at("from_folder"), true);
  EXPECT_EQ(day.at("rows"), 80);
  EXPECT_EQ(day.at("distinct"), 2);
  EXPECT_FALSE(Column(figures, "user").contains("from_folder"));
}

TEST_F(DataInspectionTest, ColumnsOfParquetThatNoFeatureReadsAreNamed) {
  if (!RequireArrow("").ok()) GTEST_SKIP() << "no Arrow";
  std::filesystem::create_directories(folder_.path() + "/day=7");
  const std::string path = folder_.path() + "/day=7/a.parquet";
  WriteTestParquet(path, {{"click", "int64", "[0, 1]"},
                          {"m", "map", "[[[\"a\", 1]], []]"},
                          {"cost", "decimal", "[\"1.50\", \"2.50\"]"},
                          {"nested", "list of list of int64", "[[[1]], [[2]]]"},
                          {"vector", "two of double", "[[0.5, 1], [2, 3]]"},
                          {"ids", "list of double", "[[1, 2], [3]]"}});
  const Json figures = Inspect({folder_.path()});
  std::vector<std::string> left_out;
  for (const Json& column : figures.at("left_out")) {
    left_out.push_back(
        absl::StrCat(std::string(column.at("name")), ": ", std::string(column.at("type"))));
  }
  EXPECT_THAT(left_out,
              testing::ElementsAre("m: map", "cost: Decimal(precision=10, scale=2)",
                                   "nested: list of lists of int64", "vector: list of float64"));
  std::vector<std::string> names;
  for (const Json& column : figures.at("columns")) names.push_back(column.at("name"));
  EXPECT_THAT(names, testing::ElementsAre("click", "ids", "day"));
}

}  // namespace
}  // namespace thermocline
