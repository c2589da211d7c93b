#include "deploy/report/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/job/data_place.h"
#include "deploy/report/progress_bar.h"

namespace thermocline {
namespace {

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(MetricsLog, JoinsPiecesKeepsLinesAndProgress) {
  const std::string path = testing::TempDir() + "/metrics_log_test.jsonl";
  std::remove(path.c_str());
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  const absl::Duration later = absl::Milliseconds(1500);
  (*log)->Append("{\"event\":\"progress\",\"step\":20,\"samples\":5120,", later);
  EXPECT_EQ((*log)->progress_events(), 0u);
  (*log)->Append("\"loss\":0.5,\"samples_per_s\":1e4,\"fraction\":0.25}\nnot json\n[1]\n\n{\"ev",
                 later);
  (*log)->Append("ent\":\"eval\",\"auc\":0.76}\n", later);
  EXPECT_EQ((*log)->progress_events(), 1u);
  EXPECT_EQ((*log)->bad_lines(), 2u);
  EXPECT_EQ((*log)->progress().step, 20u);
  EXPECT_EQ((*log)->progress().samples, 5120u);
  EXPECT_EQ((*log)->progress().samples_per_s, 1e4);
  EXPECT_EQ((*log)->progress().fraction, 0.25);
  EXPECT_EQ((*log)->progress().loss, 0.5);
  EXPECT_FALSE((*log)->progress().auc.has_value());
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(lines[0])["wall_s"], 1.5);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["auc"], 0.76);
}

TEST(MetricsLog, WrongTypesAreAbsentAndALineWithoutEndIsDropped) {
  const std::string path = testing::TempDir() + "/metrics_log_test2.jsonl";
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok());
  (*log)->Append(
      R"({"event":"progress","cache":{"hit_rate":0.5}})"
      "\n"
      R"({"event":"progress","step":"x","samples":-5,"loss":null,"cache":{"hit_rate":null}})"
      "\n",
      absl::ZeroDuration());
  EXPECT_FALSE((*log)->progress().hit_rate.has_value());
  EXPECT_EQ((*log)->progress().step, 0u);
  EXPECT_EQ((*log)->progress().samples, 0u);
  EXPECT_FALSE((*log)->progress().loss.has_value());
  (*log)->Append(std::string((1 << 20) + 1, '{'), absl::ZeroDuration());
  (*log)->Append("\n", absl::ZeroDuration());
  EXPECT_EQ((*log)->bad_lines(), 1u);
  EXPECT_FALSE(MetricsLog::Create("/no/such/folder/metrics.jsonl").ok());
}

TEST(MetricsLog, TheTailSaysHowFarTheJobGotAndHowItEnded) {
  const std::string path = testing::TempDir() + "/metrics_tail_test.jsonl";
  std::remove(path.c_str());
  EXPECT_FALSE(ReadMetricsTail(path).end.has_value());
  const auto add = [&](const std::string& line) {
    std::ofstream(path, std::ios::app) << line << "\n";
  };
  // Text far from the end isn't read: no line of a metrics file is this long.
  add("{\"event\": \"end\", \"text\": \"" + std::string(300 << 10, 'x') + "\"}");
  EXPECT_FALSE(ReadMetricsTail(path).end.has_value());
  add(R"({"event": "progress", "step": 20})");
  add(R"({"event": "end", "status": "OK"})");
  MetricsTail tail = ReadMetricsTail(path);
  ASSERT_TRUE(tail.end.has_value() && tail.progress.has_value());
  EXPECT_EQ((*tail.end)["status"], "OK");
  EXPECT_EQ((*tail.progress)["step"], 20);
  // Another launch goes on, and is killed in the middle of a line.
  add(R"({"event": "resume", "step": 20})");
  add(R"({"event": "progress", "step": 40})");
  add(R"({"event": "end", "sta)");
  tail = ReadMetricsTail(path);
  EXPECT_FALSE(tail.end.has_value());
  EXPECT_EQ((*tail.progress)["step"], 40);
}

TEST(MetricsLog, WarningsAreForTheConsoleOnce) {
  const std::string path = testing::TempDir() + "/metrics_log_test_warnings.jsonl";
  std::remove(path.c_str());
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append(
      "{\"event\":\"warning\",\"rank\":0,\"text\":\"a GPU is unused\"}\n"
      "{\"event\":\"warning\",\"text\":7}\n",
      absl::ZeroDuration());
  EXPECT_EQ((*log)->TakeWarnings(), std::vector<std::string>{"a GPU is unused"});
  EXPECT_TRUE((*log)->TakeWarnings().empty());
  EXPECT_EQ(Lines(path).size(), 2u);
  EXPECT_EQ((*log)->progress_events(), 0u);
}

TEST(DeviceWarnings, EachIsGivenOnceWithItsRanks) {
  DeviceWarnings warnings;
  const auto take = [&](size_t num_ranks) {
    std::vector<std::string> lines;
    for (const DeviceWarnings::Warning& warning : warnings.Take(num_ranks)) {
      lines.push_back(DescribeWarning(warning));
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  warnings.Set(2, "the driver is too old");
  warnings.Set(0, "the driver is too old");
  warnings.Set(0, "the driver is too old");
  warnings.Set(3, "there is no cuBLASLt");
  EXPECT_EQ(take(4), Lines());  // Rank 1 has not reported yet.
  warnings.Set(1, "");
  EXPECT_EQ(take(4),
            (Lines{"workers 0, 2: the driver is too old", "worker 3: there is no cuBLASLt"}));
  EXPECT_EQ(take(4), Lines());
  // In a later generation rank 1 is on another host.
  warnings.Set(1, "the driver is too old");
  EXPECT_EQ(take(4), Lines());
  warnings.Set(1, "there is no driver");
  EXPECT_EQ(take(4), Lines{"worker 1: there is no driver"});
}

// Where a worker ended before its report.
TEST(DeviceWarnings, AtTheEndThoseKnownAreGiven) {
  DeviceWarnings warnings;
  EXPECT_TRUE(warnings.Take(0).empty());
  warnings.Set(1, "there is no driver");
  EXPECT_TRUE(warnings.Take(2).empty());
  const std::vector<DeviceWarnings::Warning> taken = warnings.Take(0);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].text, "there is no driver");
  EXPECT_EQ(taken[0].ranks, std::vector<uint32_t>{1});
}

TEST(MetricsLog, EventsOfTheLauncherStandBetweenTheLinesOfWorkers) {
  const std::string path = testing::TempDir() + "/metrics_log_test_events.jsonl";
  std::remove(path.c_str());
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append("{\"event\":\"eval\",", absl::Seconds(1));
  (*log)->AppendEvent({{"event", "checkpoint"}, {"step", 9}}, absl::Seconds(2));
  (*log)->Append("\"auc\":0.5}\n{\"event\":", absl::Seconds(3));
  (*log)->DropPartialLine();
  (*log)->Append("{\"event\":\"eval\"}\n", absl::Seconds(4));
  EXPECT_EQ((*log)->bad_lines(), 0u);
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "{\"event\":\"checkpoint\",\"step\":9,\"wall_s\":2.0}");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["auc"], 0.5);
  EXPECT_EQ(nlohmann::json::parse(lines[2])["wall_s"], 4.0);
}

TEST(MetricsLog, EvaluationsOfStepsAreHandedOut) {
  const std::string path = testing::TempDir() + "/metrics_log_test_evaluations.jsonl";
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append(
      "{\"event\":\"eval\",\"step\":99,\"pass\":2,\"scheduled\":true,\"auc\":0.75,"
      "\"logloss\":0.5}\n{\"event\":\"eval\",\"step\":101,\"auc\":null,\"logloss\":0.6}\n"
      "{\"event\":\"eval\",\"step\":-1}\n{\"event\":\"eval\"}\n",
      absl::ZeroDuration());
  const std::vector<EvaluationReport> reports = (*log)->TakeEvaluations();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].step, Step(99));
  EXPECT_EQ(reports[0].pass, 2u);
  EXPECT_TRUE(reports[0].is_scheduled);
  EXPECT_EQ(reports[0].auc, 0.75);
  EXPECT_EQ(reports[0].logloss, 0.5);
  EXPECT_EQ(reports[1].step, Step(101));
  EXPECT_FALSE(reports[1].is_scheduled);
  EXPECT_TRUE(std::isnan(reports[1].auc));
  EXPECT_TRUE((*log)->TakeEvaluations().empty());
}

TEST(MetricsLog, SeveralTasksHaveFiguresOfTheirOwn) {
  const std::string path = testing::TempDir() + "/metrics_log_test_tasks.jsonl";
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append(
      "{\"event\":\"progress\",\"step\":9,\"loss\":1.5,\"auc\":0.75,\"tasks\":["
      "{\"label\":\"buy\",\"loss\":1,\"auc\":null},{\"label\":\"click\",\"loss\":0.5,"
      "\"auc\":0.75}]}\n"
      "{\"event\":\"eval\",\"step\":9,\"auc\":0.75,\"logloss\":0.5,\"task\":\"click\","
      "\"tasks\":[{\"label\":\"buy\",\"auc\":0.625,\"logloss\":0.25},{\"label\":\"click\","
      "\"auc\":0.75,\"logloss\":0.5}]}\n",
      absl::ZeroDuration());
  EXPECT_THAT(RenderProgress((*log)->progress(), std::nullopt),
              ::testing::HasSubstr("loss 1.5000  batch AUC buy n/a click 0.7500"));
  const std::vector<EvaluationReport> reports = (*log)->TakeEvaluations();
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].other_tasks.size(), 1u);
  EXPECT_EQ(reports[0].other_tasks[0].label, "buy");
  EXPECT_EQ(reports[0].other_tasks[0].auc, 0.625);
}

// It gives no scores of training batches.
TEST(MetricsLog, TakesTheLinesOfAScriptsWorker) {
  const std::string path = testing::TempDir() + "/metrics_log_test_script.jsonl";
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Append(
      "{\"event\":\"progress\",\"step\":20,\"samples\":200,\"samples_per_s\":50,\"loss\":0.5,"
      "\"auc\":null}\n"
      "{\"event\":\"eval\",\"step\":9,\"auc\":0.75,\"logloss\":0.5,\"own_metric\":0.25}\n"
      "{\"event\":\"eval\",\"step\":19,\"auc\":0.75,\"logloss\":0.5,\"own_metric\":null}\n",
      absl::ZeroDuration());
  EXPECT_FALSE((*log)->progress().auc.has_value());
  EXPECT_EQ(RenderProgress((*log)->progress(), std::nullopt),
            "20 steps  200 samples  50/s  loss 0.5000");
  const std::vector<EvaluationReport> reports = (*log)->TakeEvaluations();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].own_metric, 0.25);
  EXPECT_TRUE(std::isnan(reports[1].own_metric));
  EXPECT_FALSE((*log)->TakeScriptFailure().has_value());
  (*log)->Append("{\"event\":\"script_failed\",\"step\":21}\n", absl::ZeroDuration());
  EXPECT_EQ((*log)->TakeScriptFailure(), Step(21));
  EXPECT_FALSE((*log)->TakeScriptFailure().has_value());
  EXPECT_FALSE((*log)->TakeTrained().has_value());
  (*log)->Append("{\"event\":\"trained\",\"step\":39}\n", absl::ZeroDuration());
  EXPECT_EQ((*log)->TakeTrained(), Step(39));
  EXPECT_FALSE((*log)->TakeTrained().has_value());
}

TEST(MetricsLog, AChangeOfBatchesIsNoEvaluationUnlessOneIsDue) {
  const std::string path = testing::TempDir() + "/metrics_log_test_changes.jsonl";
  std::remove(path.c_str());
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  const std::string schedule = "\"schedule\":\"first_step: 100 is_hot: true rate: 25\"";
  (*log)->Append(
      absl::StrCat("{\"event\":\"eval\",\"step\":99,\"scheduled\":false,\"change\":true,", schedule,
                   "}\n{\"event\":\"eval\",\"step\":99,\"scheduled\":true,", "\"change\":true,",
                   schedule, ",\"seconds\":3,\"change_seconds\":0.5}\n"),
      absl::ZeroDuration());
  std::vector<EvaluationReport> reports = (*log)->TakeEvaluations();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_FALSE(reports[0].is_evaluation);
  EXPECT_TRUE(reports[1].is_evaluation);
  for (const EvaluationReport& report : reports) {
    EXPECT_EQ(DataPlaceToText(report.data_place), "first_step: 100 is_hot: true rate: 25");
  }
  EXPECT_EQ(reports[1].seconds, 3);
  EXPECT_EQ(reports[1].change_seconds, 0.5);
  // The file gets the evaluation alone.
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_NE(line.find("\"scheduled\":true"), std::string::npos) << line;
  EXPECT_FALSE(std::getline(file, line)) << line;
  (*log)->Append("{\"event\":\"progress\",\"batches\":{\"hot\":true,\"rate\":25,\"changes\":3}}\n",
                 absl::ZeroDuration());
  ASSERT_TRUE((*log)->progress().hot.has_value());
  EXPECT_TRUE((*log)->progress().hot->is_hot);
  EXPECT_EQ((*log)->progress().hot->rate, 25);
  EXPECT_EQ((*log)->progress().hot->changes, 3u);
}

TEST(MetricsLog, OfAPhaseTheFirstAndTheLastLineAreKept) {
  const std::string path = testing::TempDir() + "/metrics_log_test_phases.jsonl";
  std::remove(path.c_str());
  auto log = MetricsLog::Create(path);
  ASSERT_TRUE(log.ok()) << log.status();
  const auto say = [&](const std::string& phase, int done, const std::string& more) {
    (*log)->Append("{\"event\":\"phase\",\"phase\":\"" + phase +
                       "\",\"done\":" + std::to_string(done) +
                       ",\"total\":100,\"unit\":\"bytes\",\"seconds\":2.5" + more + "}\n",
                   absl::Seconds(done));
  };
  say("counting lines", 10, "");
  ASSERT_TRUE((*log)->progress().phase.has_value());
  EXPECT_EQ((*log)->progress().phase->name, "counting lines");
  EXPECT_EQ((*log)->progress().phase->total, 100u);
  EXPECT_EQ((*log)->progress().phase->unit, "bytes");
  EXPECT_EQ((*log)->progress().phase->seconds, 2.5);
  say("counting lines", 20, "");
  EXPECT_EQ((*log)->progress().phase->done, 20u);
  say("counting lines", 90, ",\"ended\":true");
  EXPECT_FALSE((*log)->progress().phase.has_value());
  say("evaluating", 95, "");
  EXPECT_EQ((*log)->phase_events(), 4u);
  EXPECT_EQ((*log)->progress_events(), 0u);
  // The worker is gone; its unfinished line goes too.
  (*log)->DropPartialLine();
  EXPECT_FALSE((*log)->progress().phase.has_value());
  std::vector<int> kept;
  for (const std::string& line : Lines(path)) kept.push_back(nlohmann::json::parse(line)["done"]);
  EXPECT_EQ(kept, (std::vector<int>{10, 90, 95}));
}

}  // namespace
}  // namespace thermocline
