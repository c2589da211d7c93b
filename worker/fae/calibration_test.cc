#include "worker/fae/calibration.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/fae/hot_classifier.h"
#include "worker/fae/student_t.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Tables t0, t1, ... of rows of 32 bytes (dim 4 with Adagrad), each read by one feature.
JobTables Tables(int n) {
  JobTables tables;
  for (int t = 0; t < n; ++t) {
    TableLayout& table = tables.sparse.emplace_back();
    table.id = TableId(static_cast<uint32_t>(t));
    table.name = absl::StrCat("t", t);
    table.dim = 4;
    FeatureSpec& feature = tables.features.emplace_back();
    feature.table_index = t;
  }
  return tables;
}

// A table whose key i was looked up counts[i] times.
CountedTable Counted(std::vector<uint32_t> counts) {
  CountedTable table;
  for (size_t i = 0; i < counts.size(); ++i) {
    table.keys.push_back(i);
    table.lookups += counts[i];
  }
  table.counts = std::move(counts);
  return table;
}

CalibrationOptions Budget(int64_t rows) {
  CalibrationOptions options;
  options.budget_bytes = 32 * rows;
  return options;
}

CalibrationResult CalibrateOk(const std::vector<CountedTable>& counted,
                              const CalibrationOptions& options) {
  const auto result = Calibrate(Tables(static_cast<int>(counted.size())), counted, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// The values are those of the tables in textbooks.
TEST(StudentT, KnownValues) {
  EXPECT_NEAR(StudentT(0.95, 1), 12.706, 0.001);
  EXPECT_NEAR(StudentT(0.95, 10), 2.228, 0.001);
  EXPECT_NEAR(StudentT(0.99, 30), 2.750, 0.001);
  EXPECT_NEAR(StudentT(0.999, 34), 3.601, 0.001);
  EXPECT_NEAR(StudentT(0.999, 1e6), 3.291, 0.001);  // The normal distribution has the same.
  EXPECT_NEAR(StudentT(0.5, 5), 0.727, 0.001);
}

TEST(Calibration, TheLowestThresholdThatFits) {
  // One threshold for both tables: 5 rows have 3 lookups or more, 7 have 2 or more.
  const std::vector<CountedTable> counted = {Counted({9, 1, 3, 2, 1}), Counted({3, 3, 7, 1, 2})};
  CalibrationResult result = CalibrateOk(counted, Budget(5));
  EXPECT_EQ(result.threshold, 3u);
  EXPECT_EQ(result.hot_rows(), 5);
  EXPECT_EQ(result.hot_bytes, 160);
  EXPECT_EQ(result.tables[0].hot_rows, 2);
  EXPECT_EQ(result.tables[0].hot_lookups, 12u);
  EXPECT_DOUBLE_EQ(result.lookup_share(), 25.0 / 32);
  EXPECT_THAT(HotKeys(counted, result), ElementsAre(ElementsAre(0, 2), ElementsAre(0, 1, 2)));
}

TEST(Calibration, RowsOfOneCountAreHotTogetherOrNotAtAll) {
  const std::vector<CountedTable> counted = {Counted({9, 1, 3, 2, 1}), Counted({3, 3, 7, 1, 2})};
  CalibrationResult result =
      CalibrateOk(counted, Budget(4));  // 2 have more than 3 lookups, 5 have 3
  EXPECT_EQ(result.threshold, 4u);
  EXPECT_EQ(result.hot_rows(), 2);
  result = CalibrateOk(counted, Budget(6));
  EXPECT_EQ(result.threshold, 3u);
  EXPECT_EQ(result.hot_rows(), 5);
  result = CalibrateOk(counted, Budget(9));
  EXPECT_EQ(result.threshold, 2u);
  result = CalibrateOk(counted, Budget(10));
  EXPECT_EQ(result.threshold, 1u);
  EXPECT_EQ(result.lookup_share(), 1);
  result = CalibrateOk(counted, Budget(0));
  EXPECT_EQ(result.threshold, 10u);
  EXPECT_THAT(HotKeys(counted, result), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(Calibration, SmallTablesAreHotWhole) {
  const std::vector<CountedTable> counted = {Counted({1, 1, 1}), Counted({9, 8, 7, 6, 5})};
  CalibrationOptions options = Budget(5);
  options.whole_table_bytes = 4 * 32;
  const CalibrationResult result = CalibrateOk(counted, options);
  EXPECT_TRUE(result.tables[0].is_whole);
  EXPECT_FALSE(result.tables[1].is_whole);
  EXPECT_EQ(result.threshold, 8u);
  EXPECT_THAT(HotKeys(counted, result), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(0, 1)));
  // "Less than".
  options.whole_table_bytes = 3 * 32;
  EXPECT_FALSE(CalibrateOk(counted, options).tables[0].is_whole);
}

TEST(Calibration, WholeTablesBeyondTheBudget) {
  const std::vector<CountedTable> counted = {Counted({1, 1, 1}), Counted({9, 8})};
  CalibrationOptions options = Budget(4);
  options.whole_table_bytes = 1024;
  // By default the smaller one is whole alone.
  const CalibrationResult result = CalibrateOk(counted, options);
  EXPECT_FALSE(result.tables[0].is_whole);
  EXPECT_TRUE(result.tables[1].is_whole);
  options.whole_table_is_default = false;
  const auto status = Calibrate(Tables(2), counted, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("calibration.whole_table is 1024 bytes: the tables below "
                                          "that take 160 bytes together, but the budget is 128 "
                                          "(t1, t0)"));
}

// Keys of Zipf's distribution, in an order that has nothing to do with their counts.
CountedTable Zipf(size_t rows) {
  std::vector<std::pair<uint64_t, uint32_t>> shuffled;
  for (size_t i = 0; i < rows; ++i) {
    shuffled.push_back({Mix64(i), static_cast<uint32_t>(1 + rows / (i + 1))});
  }
  std::sort(shuffled.begin(), shuffled.end());
  std::vector<uint32_t> counts;
  for (const auto& row : shuffled) counts.push_back(row.second);
  return Counted(std::move(counts));
}

TEST(Calibration, EstimatesComeNearTheTruth) {
  const CountedTable table = Zipf(1000000);
  CalibrationOptions options;
  int inside = 0;
  constexpr int kSeeds = 40;
  for (int seed = 0; seed < kSeeds; ++seed) {
    options.seed = static_cast<uint64_t>(seed);
    const RowEstimator estimator(table, 0, options);
    for (const uint64_t threshold : {5, 20}) {
      double truth = 0;
      for (const uint32_t count : table.counts) truth += count >= threshold ? 1 : 0;
      const RowEstimate estimate = estimator.Estimate(threshold);
      EXPECT_NEAR(estimate.rows / truth, 1, 0.15);
      EXPECT_GT(estimate.most, estimate.rows);
      inside += truth <= estimate.most ? 1 : 0;
    }
  }
  EXPECT_GE(inside, 2 * kSeeds - 2);
}

TEST(Calibration, SmallTablesAreCountedNotEstimated) {
  const CountedTable table = Zipf(35 * 1024);
  const RowEstimator estimator(table, 0, CalibrationOptions());
  EXPECT_EQ(estimator.Estimate(1).rows, 35 * 1024);
  EXPECT_EQ(estimator.Estimate(1).most, 35 * 1024);
}

TEST(Calibration, TheEstimateStaysWithinTheBudgetAndNearIt) {
  std::vector<CountedTable> counted;
  counted.push_back(Zipf(200000));
  CalibrationOptions options = Budget(20000);
  const CalibrationResult result = CalibrateOk(counted, options);
  EXPECT_GE(result.estimated_threshold, result.threshold);
  EXPECT_LE(result.estimated_threshold, result.threshold * 3 / 2);
  EXPECT_LE(result.hot_rows(), 20000);
  EXPECT_NEAR(result.estimated_rows() / static_cast<double>(result.hot_rows()), 1, 0.1);
  EXPECT_GE(result.estimate_s, 0);
}

// ---- lookups, and samples of them

// A batch whose feature f has the bags of features[f].
std::unique_ptr<Batch> BatchOf(const std::vector<std::vector<std::vector<Key>>>& features) {
  auto batch = std::make_unique<Batch>();
  batch->size = static_cast<int>(features[0].size());
  for (const auto& bags : features) {
    FeatureLookups& lookups = batch->features.emplace_back();
    lookups.offsets.push_back(0);
    for (const std::vector<Key>& bag : bags) {
      lookups.keys.insert(lookups.keys.end(), bag.begin(), bag.end());
      lookups.offsets.push_back(static_cast<int32_t>(lookups.keys.size()));
    }
  }
  return batch;
}

TEST(LookupCounts, FeaturesOfOneTableCountTogether) {
  JobTables tables = Tables(2);
  FeatureSpec shared;
  shared.table_index = 0;
  tables.features.push_back(shared);
  ThreadPool pool(3);
  LookupCounts counts(tables, &pool);
  std::vector<std::unique_ptr<Batch>> batches;
  batches.push_back(BatchOf({{{5}, {7, 5}}, {{1}, {}}, {{5}, {9}}}));
  counts.Add(batches);
  counts.Add(batches);
  const std::vector<CountedTable> counted = counts.Finish();
  EXPECT_THAT(counted[0].keys, ElementsAre(5, 7, 9));
  EXPECT_THAT(counted[0].counts, ElementsAre(6, 2, 2));
  EXPECT_EQ(counted[0].lookups, 10u);
  EXPECT_THAT(counted[1].counts, ElementsAre(2));
}

TEST(HotClassifier, ASampleIsHotWhereAllItsLookupsAre) {
  const JobTables tables = Tables(2);
  const std::vector<CountedTable> counted = {Counted({9, 1, 9}), Counted({5, 1})};
  const CalibrationResult result = CalibrateOk(counted, Budget(3));  // keys 0 and 2; key 0
  HotClassifier classifier(tables, counted, result);
  ThreadPool pool(2);
  std::vector<uint8_t> is_hot;
  classifier.Classify(*BatchOf({{{0}, {1}, {0, 2}, {}, {2, 1}}, {{0}, {0}, {0}, {}, {0}}}), &pool,
                      &is_hot);
  EXPECT_THAT(is_hot, ElementsAre(1, 0, 1, 1, 0));
  EXPECT_EQ(classifier.totals().samples, 5);
  EXPECT_EQ(classifier.totals().hot_samples, 3);
  EXPECT_EQ(classifier.totals().lookups, 10u);
  EXPECT_EQ(classifier.totals().hot_lookups, 8u);
  EXPECT_THAT(classifier.MakeHotSet().tables, ElementsAre(ElementsAre(0, 2), ElementsAre(0)));
}

TEST(HotClassifier, WholeTablesGrowAsLongAsTheBudgetHasRoom) {
  const JobTables tables = Tables(1);
  const std::vector<CountedTable> counted = {Counted({9, 1})};
  CalibrationOptions options = Budget(3);
  options.whole_table_bytes = 3 * 32;
  const CalibrationResult result = CalibrateOk(counted, options);
  ASSERT_TRUE(result.tables[0].is_whole);
  HotClassifier classifier(tables, counted, result);
  ThreadPool pool(2);
  std::vector<uint8_t> is_hot;
  classifier.Classify(*BatchOf({{{0}, {70}, {80}, {70}}}), &pool, &is_hot);
  EXPECT_THAT(is_hot, ElementsAre(1, 1, 0, 1));
  EXPECT_EQ(classifier.totals().added_rows, 1);
  EXPECT_TRUE(classifier.totals().is_full);
  EXPECT_THAT(classifier.MakeHotSet().tables, ElementsAre(ElementsAre(0, 1, 70)));
}

}  // namespace
}  // namespace thermocline
