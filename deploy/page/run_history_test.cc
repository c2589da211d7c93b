#include "deploy/page/run_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "deploy/page/testing/made_run.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

void Take(const std::string& lines, HistoryReader* reader) {
  for (size_t begin = 0, end; (end = lines.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    reader->TakeLine(absl::string_view(lines).substr(begin, end - begin));
  }
}

std::string Steps(int64_t first, int64_t last, double wall_s) {
  std::string lines;
  for (int64_t step = first; step <= last; ++step) {
    lines += ProgressLine(step, wall_s + static_cast<double>(step - first), 0.5);
  }
  return lines;
}

TEST(HistoryReader, ALineThatIsNotWholeWaits) {
  MadeRun run;
  HistoryReader reader;
  EXPECT_FALSE(reader.Follow(run.path() + "/metrics.jsonl"));
  run.Append(ProgressLine(1, 1, 0.5) + R"({"event":"progress","step":2,)");
  ASSERT_TRUE(reader.Follow(run.path() + "/metrics.jsonl"));
  EXPECT_EQ(reader.history().progress.size(), 1u);
  EXPECT_TRUE(reader.history().ends_within_line);
  EXPECT_EQ(reader.history().bad_lines, 0u);

  run.Append("\"wall_s\":2}\n");
  ASSERT_TRUE(reader.Follow(run.path() + "/metrics.jsonl"));
  EXPECT_EQ(reader.history().progress.size(), 2u);
  EXPECT_FALSE(reader.history().ends_within_line);
}

TEST(HistoryReader, AFileThatBecameShorterIsReadAnew) {
  MadeRun run;
  HistoryReader reader;
  run.Append(Steps(1, 9, 1));
  ASSERT_TRUE(reader.Follow(run.path() + "/metrics.jsonl"));
  run.Write("metrics.jsonl", Steps(1, 2, 1));
  ASSERT_TRUE(reader.Follow(run.path() + "/metrics.jsonl"));
  EXPECT_EQ(reader.history().progress.size(), 2u);
}

TEST(HistoryReader, LinesAcrossChunksAndHugeOnes) {
  MadeRun run;
  HistoryReader reader;
  run.Append(Steps(1, 10000, 1));  // Over a megabyte.
  run.Append(std::string(9 << 20, 'x') + "\n");
  run.Append(ProgressLine(10001, 10001, 0.5));
  ASSERT_TRUE(reader.Follow(run.path() + "/metrics.jsonl"));
  EXPECT_EQ(reader.history().num_lines, 10002u);
  EXPECT_EQ(reader.history().bad_lines, 1u);
  EXPECT_EQ(reader.history().progress.place(reader.history().progress.size() - 1).step, 10001);
}

TEST(HistoryReader, LinesThatAreNoEventsAreCounted) {
  HistoryReader reader;
  Take(
      "no json\n[1]\n{\"event\":\"progress\",\"wall_s\":1}\n{\"event\":\"eval\"}\n"
      "{\"event\":7,\"wall_s\":1}\n\n",
      &reader);
  EXPECT_EQ(reader.history().bad_lines, 5u);
  EXPECT_TRUE(reader.history().launches.empty());
}

TEST(HistoryReader, OtherTypesThanExpectedDoNoHarm) {
  HistoryReader reader;
  for (const char* kind : {"progress", "workers", "eval", "decision", "checkpoint", "rollback",
                           "resume", "server_restart", "phase", "slow_host", "warning", "limit",
                           "end", "change", "pack", "started", "checkpoint_called_off"}) {
    Json line = {{"event", kind}, {"wall_s", 1}, {"step", 1}};
    for (const char* field : {"reason", "process", "name", "cache", "stages_us_per_step", "ranks",
                              "text", "host", "is_slow", "time", "full", "phase", "status"}) {
      line[field] = {{"is", {1, nullptr}}};
    }
    reader.TakeLine(line.dump());
  }
  EXPECT_EQ(reader.history().bad_lines, 0u);
  EXPECT_EQ(reader.history().num_lines, 17u);
}

TEST(HistoryReader, ARollbackTakesStepsBackAndKeepsThemAsLost) {
  HistoryReader reader;
  Take(Steps(1, 10, 1) + EventLine("eval", 8, {{"step", 7}, {"auc", 0.8}, {"logloss", 0.4}}) +
           EventLine("decision", 8, {{"step", 7}, {"is_best", true}}),
       &reader);
  ASSERT_TRUE(reader.history().best.has_value());
  Take(EventLine(
           "rollback", 12,
           {{"step", 6}, {"generation", 2}, {"reason", "was killed"}, {"process", "worker 1"}}),
       &reader);
  const RunHistory& history = reader.history();
  EXPECT_EQ(history.progress.size(), 6u);
  EXPECT_TRUE(history.evaluations.empty());
  EXPECT_FALSE(history.best.has_value());
  ASSERT_EQ(history.lost.size(), 1u);
  EXPECT_EQ(history.lost[0]["from"], 6);
  EXPECT_EQ(history.lost[0]["to"], 10);
  EXPECT_EQ(history.lost[0]["step"], Json({7, 8, 9, 10}));
  ASSERT_EQ(history.launches.back().generations.size(), 2u);
  ASSERT_EQ(history.lanes.count("worker 1"), 1u);
  EXPECT_EQ(history.lanes.at("worker 1").marks.last()->kind, "rollback");

  Take(Steps(7, 8, 13), &reader);
  EXPECT_EQ(reader.history().progress.ToJson()["step"], Json({1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(HistoryReader, TimeGoesOnOverLaunches) {
  HistoryReader reader;
  Take(EventLine("started", 0, {{"time", 1700000000}, {"host", "h1"}, {"version", "0.1.0"}}) +
           Steps(1, 3, 1) +
           EventLine("end", 5, {{"status", "CANCELLED"}, {"reason", "by a signal"}}) +
           EventLine("started", 0, {{"time", 1700009000}}) +
           EventLine("resume", 1, {{"step", 3}, {"generation", 2}}) + Steps(4, 5, 2),
       &reader);
  const RunHistory& history = reader.history();
  ASSERT_EQ(history.launches.size(), 2u);
  EXPECT_EQ(history.launches[0].status, "CANCELLED");
  EXPECT_EQ(history.launches[0].began_at, 1700000000);
  EXPECT_EQ(history.launches[1].began_at, 1700009000);
  EXPECT_EQ(history.launches[1].begin, 5);
  EXPECT_EQ(history.t, 8);
  EXPECT_EQ(history.progress.ToJson()["t"], Json({1, 2, 3, 7, 8}));
}

TEST(HistoryReader, ALaunchWithNothingLeftToTrainAddsNoStep) {
  HistoryReader reader;
  Take(Steps(1, 3, 1) + EventLine("started", 0, {}) +
           EventLine("resume", 1, {{"step", 3}, {"generation", 2}}) +
           EventLine("progress", 2, {{"step", 3}, {"samples", 30}, {"fraction", 1.0}}),
       &reader);
  EXPECT_EQ(reader.history().progress.ToJson()["step"], Json({1, 2, 3}));
}

TEST(HistoryReader, LaunchesWithoutAFirstLineAreToldApart) {
  HistoryReader reader;
  // The first was killed; its clock began anew.
  Take(Steps(1, 3, 100) + EventLine("pack", 1, {{"hot_rows", 5}}) +
           EventLine("resume", 1, {{"step", 2}, {"generation", 2}}) + Steps(3, 4, 2),
       &reader);
  EXPECT_EQ(reader.history().launches.size(), 2u);
  EXPECT_EQ(reader.history().progress.size(), 4u);
}

TEST(HistoryReader, ARunBegunAnewWithoutALineThatSaysSo) {
  HistoryReader reader;
  Take(Steps(1, 9, 1) + EventLine("started", 0, {}) + Steps(1, 2, 1), &reader);
  EXPECT_EQ(reader.history().progress.ToJson()["step"], Json({1, 2}));
}

TEST(HistoryReader, StagesOfTheTrainingThreadAreFigures) {
  HistoryReader reader;
  Take(EventLine("progress", 1,
                 {{"step", 1}, {"stages_us_per_step", {{"forward", 9.5}, {"read (ahead)", 3}}}}),
       &reader);
  EXPECT_EQ(reader.history().progress.ToJson()["mean"].dump(), R"({"stage forward":[9.5]})");
}

TEST(HistoryReader, SpansOfPhasesAndSlowHosts) {
  HistoryReader reader;
  Take(EventLine("phase", 3, {{"phase", "counting lines"}, {"seconds", 2}}) +
           EventLine("phase", 9, {{"phase", "counting lines"}, {"seconds", 8}, {"ended", true}}) +
           EventLine("slow_host", 10, {{"host", "h2"}, {"role", "worker"}, {"is_slow", true}}),
       &reader);
  EXPECT_EQ(reader.history().phase, "");
  Take(EventLine("end", 20, {{"status", "OK"}}), &reader);
  const auto& lanes = reader.history().lanes;
  const auto phases = lanes.at("phases").spans.Items();
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(phases[0].begin, 1);
  EXPECT_EQ(phases[0].end, 9);
  const auto slow = lanes.at("host h2").spans.Items();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].end, 20);
}

TEST(HistoryReader, EventsAreTheFirstAndTheLast) {
  HistoryReader reader;
  for (int i = 0; i < 2000; ++i) {
    reader.TakeLine(EventLine("warning", i, {{"text", std::to_string(i)}}));
  }
  const RunHistory& history = reader.history();
  EXPECT_EQ(history.first_events.back().text, "99");
  EXPECT_EQ(history.last_events.front().text, "1600");
  EXPECT_EQ(history.last_events.back().text, "1999");
  EXPECT_EQ(history.event_counts.at("warning"), 2000u);
}

TEST(DescribeEvent, SaysWhatHappened) {
  EXPECT_EQ(DescribeEvent("rollback",
                          {{"reason", "worker 1 was killed"}, {"step", 6}, {"generation", 2}}),
            "worker 1 was killed; back to step 6 (generation 2)");
  EXPECT_EQ(DescribeEvent(
                "checkpoint",
                {{"name", "step-000000019"}, {"bytes", 2048}, {"full", false}, {"write_s", 0.25}}),
            "step-000000019, 2.0 KiB (changes), written in 0.2 s");
  EXPECT_THAT(DescribeEvent("eval", {{"step", 19}, {"auc", 0.75}, {"logloss", 0.5}}),
              HasSubstr("after step 19: AUC 0.7500  logloss 0.5000"));
  EXPECT_EQ(DescribeEvent("warning", {{"ranks", {0, 2}}, {"text", "no GPU"}}),
            "workers 0, 2: no GPU");
  EXPECT_EQ(DescribeEvent("of_later", {{"event", "of_later"}, {"wall_s", 1}, {"a", 1}, {"b", "x"}}),
            "a 1, b x");
}

}  // namespace
}  // namespace thermocline
