#include "deploy/clicklog/click_log.h"

#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/disk/npy.h"
#include "deploy/clicklog/click_model.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

std::string NewFolder() {
  std::string pattern = testing::TempDir() + "/click_log_XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr);
  return pattern;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string ReadGzip(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  CHECK(file != nullptr);
  std::string text;
  char buffer[1 << 14];
  for (int n; (n = gzread(file, buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  CHECK_EQ(gzclose(file), Z_OK);
  return text;
}

ClickLogOptions SmallOptions(ClickLogFormat format) {
  ClickLogOptions options;
  options.folder = NewFolder();
  options.format = format;
  options.rows = 17000;  // Two blocks.
  options.test_rows = 1000;
  options.shrink = 100;
  options.users = 10000;
  options.items = 10000;
  options.threads = 2;
  return options;
}

ClickLogSummary Generate(const ClickLogOptions& options) {
  auto summary = GenerateClickLog(options, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return summary.ok() ? *summary : ClickLogSummary();
}

TEST(ClickLog, SameOptionsGiveTheSameBytesWhateverTheThreads) {
  for (ClickLogFormat format : {ClickLogFormat::kNpy, ClickLogFormat::kTsvGzip}) {
    ClickLogOptions options = SmallOptions(format);
    options.threads = 1;
    const ClickLogSummary one = Generate(options);
    options.folder = NewFolder();
    options.threads = 4;
    const ClickLogSummary four = Generate(options);
    ASSERT_EQ(one.train.files.size(), four.train.files.size());
    for (size_t i = 0; i < one.train.files.size(); ++i) {
      EXPECT_TRUE(ReadFile(one.train.files[i]) == ReadFile(four.train.files[i]));
      EXPECT_TRUE(ReadFile(one.test.files[i]) == ReadFile(four.test.files[i]));
      EXPECT_FALSE(ReadFile(one.test.files[i]).empty());
    }
    EXPECT_EQ(one.train.best_auc, four.train.best_auc);

    options.folder = NewFolder();
    options.seed = 2;
    EXPECT_FALSE(ReadFile(Generate(options).train.files[0]) == ReadFile(one.train.files[0]));
  }
}

TEST(ClickLog, TextAndNpyHoldTheSameRows) {
  const ClickLogSummary npy = Generate(SmallOptions(ClickLogFormat::kNpy));
  const ClickLogSummary tsv = Generate(SmallOptions(ClickLogFormat::kTsv));
  const ClickLogSummary gzip = Generate(SmallOptions(ClickLogFormat::kTsvGzip));
  EXPECT_TRUE(ReadGzip(gzip.train.files[0]) == ReadFile(tsv.train.files[0]));

  auto sparse = MappedNpy::Open(npy.test.files[1]);
  auto labels = MappedNpy::Open(npy.test.files[2]);
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  ASSERT_TRUE(labels.ok()) << labels.status();
  ASSERT_EQ((*sparse)->header().shape, (std::vector<int64_t>{1000, 26}));
  ASSERT_EQ((*labels)->header().shape, (std::vector<int64_t>{1000, 1}));
  const auto* const ids = reinterpret_cast<const int32_t*>((*sparse)->data());
  const auto* const clicks = reinterpret_cast<const int32_t*>((*labels)->data());
  std::istringstream lines(ReadFile(tsv.test.files[0]));
  std::string line;
  int row = 0;
  for (; std::getline(lines, line); ++row) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 40u);
    ASSERT_EQ(columns[0], std::to_string(clicks[row]));
    for (int c = 0; c < 26; ++c) {
      ASSERT_EQ(std::stoul(columns[14 + c], nullptr, 16), static_cast<size_t>(ids[26 * row + c]));
    }
  }
  EXPECT_EQ(row, 1000);
}

TEST(ClickLog, IdsFitTheirTablesAndAreSkewed) {
  ClickLogOptions options = SmallOptions(ClickLogFormat::kNpy);
  const ClickLogSummary summary = Generate(options);
  std::vector<std::string> cardinalities = absl::StrSplit(
      ReadFile(options.folder + "/cardinalities.txt"), absl::ByAnyChar("-\n"), absl::SkipEmpty());
  ASSERT_EQ(cardinalities.size(), 26u);
  auto sparse = MappedNpy::Open(summary.train.files[1]);
  ASSERT_TRUE(sparse.ok());
  const auto* const ids = reinterpret_cast<const int32_t*>((*sparse)->data());
  std::map<std::pair<int, int32_t>, int64_t> lookups;
  for (int64_t i = 0; i < 26 * options.rows; ++i) {
    const int c = static_cast<int>(i % 26);
    ASSERT_GE(ids[i], 0);
    ASSERT_LT(ids[i], summary.cardinalities[c]);
    ++lookups[{c, ids[i]}];
  }
  for (int c = 0; c < 26; ++c) {
    EXPECT_EQ(cardinalities[c], std::to_string(summary.cardinalities[c]));
  }
  EXPECT_EQ(summary.train.distinct_ids, static_cast<int64_t>(lookups.size()));
  // In real logs one id in a hundred takes most of the lookups.
  std::vector<int64_t> counts;
  for (const auto& [id, count] : lookups) counts.push_back(count);
  std::sort(counts.rbegin(), counts.rend());
  int64_t top = 0;
  for (size_t i = 0; i < counts.size() / 100; ++i) top += counts[i];
  EXPECT_GT(static_cast<double>(top) / (26.0 * options.rows), 0.5);
}

// The share of rows whose ids are all among the ones that come often, and the share of the lookups.
std::pair<double, double> HotShares(const ClickLogSummary& summary) {
  auto sparse = MappedNpy::Open(summary.train.files[1]);
  CHECK(sparse.ok());
  const auto* const ids = reinterpret_cast<const int32_t*>((*sparse)->data());
  std::map<std::pair<int64_t, int32_t>, int64_t> lookups;
  const int64_t rows = summary.train.rows;
  for (int64_t i = 0; i < 26 * rows; ++i) ++lookups[{i % 26, ids[i]}];
  int64_t hot_rows = 0, hot_lookups = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int hot = 0;
    for (int64_t c = 0; c < 26; ++c) hot += lookups[{c, ids[26 * row + c]}] >= 20;
    hot_rows += hot == 26;
    hot_lookups += hot;
  }
  return {static_cast<double>(hot_rows) / static_cast<double>(rows),
          static_cast<double>(hot_lookups) / (26.0 * static_cast<double>(rows))};
}

TEST(ClickLog, CorrelationMakesIdsPopularTogetherAndNoneMorePopular) {
  double last_rows = -1, first_lookups = 0;
  for (const double correlation : {0.0, 0.5, 1.0}) {
    ClickLogOptions options = SmallOptions(ClickLogFormat::kNpy);
    options.correlation = correlation;
    const auto [rows, lookups] = HotShares(Generate(options));
    EXPECT_GT(rows, last_rows + 0.02) << correlation;
    last_rows = rows;
    if (correlation == 0) first_lookups = lookups;
    EXPECT_NEAR(lookups, first_lookups, 0.03) << correlation;
  }
}

// Logs that earlier versions wrote are written again.
TEST(ClickLog, WithoutCorrelationTheBytesAreThoseOfOld) {
  ClickLogOptions options;
  options.folder = NewFolder();
  options.format = ClickLogFormat::kTsv;
  options.rows = 1000;
  options.test_rows = 10;
  options.shrink = 100;
  const std::string text = ReadFile(Generate(options).train.files[0]);
  EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())),
            0xd1ece7fu);
}

// The planted model predicts well, but not perfectly; both splits are drawn from it.
TEST(ClickLog, PlantedModelIsWorthLearning) {
  ClickLogOptions options = SmallOptions(ClickLogFormat::kNpy);
  options.rows = 20000;
  options.test_rows = 20000;
  options.shrink = 1;
  const ClickLogSummary summary = Generate(options);
  for (const ClickLogSplit* split : {&summary.train, &summary.test}) {
    EXPECT_EQ(split->rows, 20000);
    EXPECT_GT(split->best_auc, 0.80);
    EXPECT_LT(split->best_auc, 0.88);
    EXPECT_GT(split->click_rate, 0.2);
    EXPECT_LT(split->click_rate, 0.45);
  }
  EXPECT_NEAR(summary.train.best_auc, summary.test.best_auc, 0.015);
}

TEST(ClickLog, ProgressReachesTheTotal) {
  const ClickLogOptions options = SmallOptions(ClickLogFormat::kNpy);
  int64_t last = 0;
  auto summary = GenerateClickLog(options, [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 18000);
    last = done;
  });
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(last, 18000);
}

TEST(ClickLog, NoTestRowsNoTestFiles) {
  ClickLogOptions options = SmallOptions(ClickLogFormat::kTsv);
  options.test_rows = 0;
  EXPECT_EQ(Generate(options).test.rows, 0);
  EXPECT_FALSE(std::filesystem::exists(options.folder + "/test.tsv"));
  EXPECT_FALSE(std::filesystem::exists(options.folder + "/train.tsv.part"));
}

TEST(ClickLog, WrongOptionsAreNamed) {
  const auto message = [](void (*change)(ClickLogOptions*)) {
    ClickLogOptions options;
    options.folder = "unused";
    change(&options);
    const absl::Status status = GenerateClickLog(options, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using Options = ClickLogOptions;
  EXPECT_EQ(message([](Options* o) { o->folder = ""; }), "no folder is given");
  EXPECT_EQ(message([](Options* o) { o->rows = 0; }), "rows is 0; at least 1 is wanted");
  EXPECT_EQ(message([](Options* o) { o->test_rows = -1; }), "test_rows is -1");
  EXPECT_EQ(message([](Options* o) { o->skew = 0; }), "skew is 0; it must be in (0, 4]");
  EXPECT_EQ(message([](Options* o) { o->users = 0; }), "users is 0; at least 1 is wanted");
  EXPECT_EQ(message([](Options* o) { o->items = 0; }), "items is 0; at least 1 is wanted");
  EXPECT_EQ(message([](Options* o) { o->shrink = 0.5; }), "shrink is 0.5; at least 1 is wanted");
  EXPECT_EQ(message([](Options* o) { o->correlation = 1.5; }),
            "correlation is 1.5; it must be in [0, 1]");
}

TEST(ClickLog, FolderThatCannotBeMade) {
  ClickLogOptions options = SmallOptions(ClickLogFormat::kNpy);
  std::ofstream(options.folder + "/file") << "x";
  options.folder += "/file/below";
  EXPECT_EQ(GenerateClickLog(options, nullptr).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Zipf, CoversItsRangeAndPrefersTheFirst) {
  for (double skew : {0.5, 1.0, 1.05, 2.0}) {
    const ZipfDistribution zipf(1000, skew);
    EXPECT_EQ(zipf(0), 0);
    EXPECT_LE(zipf(0.9999999999999999), 999);
    int64_t last = 0;
    for (int i = 0; i < 1000; ++i) {
      EXPECT_GE(zipf(i / 1000.0), last);
      last = zipf(i / 1000.0);
    }
    // The first tenth of the ids gets more than a tenth of the rows.
    EXPECT_LT(zipf(0.11), 100);
  }
}

TEST(ClickLog, HeldOutRowsOfAnotherLogAreNotTakenForItsOwn) {
  for (const ClickLogFormat format :
       {ClickLogFormat::kNpy, ClickLogFormat::kTsv, ClickLogFormat::kTsvGzip}) {
    ClickLogOptions options = SmallOptions(format);
    options.rows = 100;
    options.test_rows = 10;
    Generate(options);
    options.test_rows = 0;
    const auto again = GenerateClickLog(options, nullptr);
    EXPECT_EQ(again.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(again.status().message().find("/test"), absl::string_view::npos) << again.status();
  }
}

}  // namespace
}  // namespace thermocline
