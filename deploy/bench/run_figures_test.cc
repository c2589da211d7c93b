#include "deploy/bench/run_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace thermocline {
namespace {

using ::testing::HasSubstr;

class RunFiguresTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/run-" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  RunFigures Read() {
    const auto run = ReadRun(folder_);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *run : RunFigures();
  }

  // 100 steps of 10 samples in 5 s: 200 samples/s.
  const std::string summary_ =
      R"("steps": 100, "samples": 1000, "samples_per_s": 200, "auc": 0.75, "logloss": 0.5,
         "bytes_pulled": 50000, "bytes_pushed": 30000, "model_digest": "ab")";
  std::string folder_;
};

TEST_F(RunFiguresTest, CountsTrainingWithoutEvaluations) {
  Write("summary.json", "{" + summary_ + R"(, "exchange": {"bytes_sent": 4000}})");
  Write("worker-0.json",
        R"({"device": "cpu", "samples": 1000, "bytes_to_device": 7000, "bytes_from_device": 3000,
            "stages": {"forward": {"count": 100, "total_s": 2.0, "mean_us": 20000},
                       "push": {"count": 100, "total_s": 0.5, "mean_us": 5000}}})");
  // The second window is slower. The evaluations pull rows that training does not.
  Write("metrics.jsonl", R"({"event":"progress","step":50,"samples":500,"samples_per_s":250}
{"event":"eval","step":74,"scheduled":true,"auc":0.7,"logloss":0.6,"seconds":9,"bytes_pulled":10000}
{"event":"progress","step":100,"samples":1000,"samples_per_s":166.66666666666666}
not a line of ours
{"event":"eval","step":99,"scheduled":true,"auc":0.75,"logloss":0.5,"seconds":9,"bytes_pulled":10000}
)");
  const RunFigures run = Read();
  EXPECT_EQ(run.steps, 100);
  EXPECT_DOUBLE_EQ(run.samples_per_s, 200);
  EXPECT_DOUBLE_EQ(run.train_s, 5);
  EXPECT_EQ(run.device, "cpu");
  EXPECT_EQ(run.digest, "ab");
  EXPECT_DOUBLE_EQ(run.wire_bytes_per_sample, (50000 + 30000 + 4000 - 20000) / 1000.0);
  EXPECT_DOUBLE_EQ(run.device_bytes_per_sample.value(), 10);
  EXPECT_FALSE(run.hit_rate.has_value());
  EXPECT_FALSE(run.hot_share.has_value());
  ASSERT_EQ(run.stage_us.size(), 2u);
  EXPECT_EQ(run.stage_us[0].first, "forward");
  EXPECT_DOUBLE_EQ(run.stage_us[0].second, 2000);
  ASSERT_EQ(run.points.size(), 2u);
  // Half of the second window of 3 s after the first of 2 s.
  EXPECT_EQ(run.points[0].steps, 75);
  EXPECT_NEAR(run.points[0].train_s, 3.5, 1e-9);
  EXPECT_NEAR(run.points[1].train_s, 5, 1e-9);
}

TEST_F(RunFiguresTest, TheScheduleOfHotAndColdBatchesCostsTimeAndBytes) {
  Write("summary.json", "{" + summary_ +
                            R"(, "pack": {"calibrate_s": 1.5, "pack_s": 2.5, "hot_rows": 40,
                          "samples": {"hot": 250, "cold": 750}}})");
  Write("worker-0.json", "{}");
  Write("metrics.jsonl",
        R"({"event":"progress","step":50,"samples":500,"samples_per_s":200}
{"event":"change","step":49,"hot":true,"rate":25,"logloss":0.6,"seconds":2}
{"event":"progress","step":100,"samples":1000,"samples_per_s":200}
{"event":"eval","step":99,"scheduled":true,"auc":0.8,"logloss":0.5,"seconds":2,"bytes_pulled":8000}
{"event":"change","step":99,"hot":false,"rate":12.5,"logloss":0.5,"seconds":0.5}
)");
  const RunFigures run = Read();
  EXPECT_DOUBLE_EQ(run.train_s, 7.5);  // 5 s of steps, 2.5 s of scoring for changes
  EXPECT_DOUBLE_EQ(run.wire_bytes_per_sample, 72);
  EXPECT_DOUBLE_EQ(run.hot_share.value(), 0.25);
  EXPECT_DOUBLE_EQ(run.hot_rows.value(), 40);
  EXPECT_DOUBLE_EQ(run.calibrate_s.value(), 1.5);
  EXPECT_DOUBLE_EQ(run.pack_s.value(), 2.5);
  ASSERT_EQ(run.points.size(), 2u);
  EXPECT_FALSE(run.points[0].is_evaluation);
  EXPECT_DOUBLE_EQ(run.points[0].rate.value(), 25);
  EXPECT_TRUE(run.points[1].is_evaluation);
  EXPECT_DOUBLE_EQ(run.points[1].rate.value(), 12.5);
  EXPECT_NEAR(run.points[1].train_s, 7.5, 1e-9);
  // The scoring of the schedule is of fewer rows: it is no AUC that a run is timed to.
  EXPECT_NEAR(SecondsToAuc(run, 0.7).value(), 7.5, 1e-9);
  EXPECT_FALSE(SecondsToAuc(run, 0.85).has_value());
}

// A run that is timed has no evaluation in it; another run tells the AUC after so many steps.
TEST_F(RunFiguresTest, EvaluationsOfAnotherRunAreTimedByThisOne) {
  RunFigures run;
  run.progress = {{50, 2}, {100, 6}};
  run.points = {{40, 1.6, 0.5, 0.6, 0, false, 25.0, 3}, {100, 9, 0.8, 0.5, 1, true, std::nullopt}};
  RunFigures evaluated;
  evaluated.points = {{25, 77, 0.7, 0.6, 1, true, std::nullopt},
                      {40, 78, 0.6, 0.6, 1, false, 12.5},
                      {75, 79, 0.8, 0.5, 1, true, 12.5, 2}};
  TakeEvaluations(evaluated, &run);
  ASSERT_EQ(run.points.size(), 3u);
  EXPECT_NEAR(run.points[0].train_s, 1, 1e-12);
  EXPECT_FALSE(run.points[1].is_evaluation);
  EXPECT_EQ(run.points[1].rate, 25);
  EXPECT_NEAR(run.points[2].train_s, 4 + 3, 1e-12);
  EXPECT_FALSE(run.points[2].rate.has_value());
  EXPECT_NEAR(SecondsToAuc(run, 0.75).value(), 7, 1e-12);
}

TEST_F(RunFiguresTest, APackThatWasThereTookNoTime) {
  Write("summary.json", "{" + summary_ +
                            R"(, "cache": {"hit_rate": 0.4},
                     "pack": {"reused": true, "calibrate_s": 1.5, "pack_s": 2.5,
                              "file": "/packs/ab.pack"}})");
  Write("worker-0.json", "{}");
  const RunFigures run = Read();
  EXPECT_FALSE(run.calibrate_s.has_value());
  EXPECT_FALSE(run.pack_s.has_value());
  EXPECT_TRUE(run.reuses_pack);
  EXPECT_EQ(run.pack, "/packs/ab.pack");
  EXPECT_DOUBLE_EQ(run.hit_rate.value(), 0.4);
  EXPECT_TRUE(run.points.empty());
}

TEST_F(RunFiguresTest, WhatIsMissingIsNamed) {
  EXPECT_EQ(ReadRun(folder_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ReadRun(folder_).status().message(), HasSubstr("summary.json"));
  Write("summary.json", R"({"steps": 0, "samples": 0, "samples_per_s": null})");
  EXPECT_THAT(ReadRun(folder_).status().message(), HasSubstr("worker-0.json"));
  Write("worker-0.json", "{}");
  EXPECT_THAT(ReadRun(folder_).status().message(), HasSubstr("no training"));
}

TEST(Spread, MedianAndEnds) {
  EXPECT_FALSE(SpreadOf({}).has_value());
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  const Spread spread = SpreadOf({5, 1, 9}).value();
  EXPECT_EQ(spread.median, 5);
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 9);
}

}  // namespace
}  // namespace thermocline
