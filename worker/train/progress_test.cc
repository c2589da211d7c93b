#include "worker/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/job/data_place.h"

namespace thermocline {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// What a worker writes to its controller.
class WorkerProgressTest : public testing::Test {
 protected:
  WorkerProgressTest() { EXPECT_EQ(pipe(fds_), 0); }
  ~WorkerProgressTest() override { close(fds_[0]); }

  // With a line for every advance.
  WorkerProgress Talkative() { return {"job", WorkerRank(2), fds_[1], absl::ZeroDuration()}; }

  // All lines so far; no more can be written.
  std::vector<nlohmann::json> Lines() {
    close(fds_[1]);
    std::string text;
    char block[4096];
    for (ssize_t n; (n = read(fds_[0], block, sizeof(block))) > 0;) text.append(block, n);
    std::istringstream stream(text);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  int fds_[2];
};

// The text may be that of a script.
TEST_F(WorkerProgressTest, AWarningThatIsNoUtf8IsShown) {
  Talkative().Warn("caf\xe9: careful");
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["event"], "warning");
  EXPECT_EQ(lines[0]["rank"], 2);
  EXPECT_EQ(lines[0]["text"], "caf\xef\xbf\xbd: careful");
}

// Where every step of a window was skipped there is no loss, and 0 would pass for one.
TEST_F(WorkerProgressTest, AWindowWithoutALossHasNone) {
  WorkerProgress progress = Talkative();
  TrainerReport report;
  report.steps = 20;
  report.skipped_steps = 20;
  report.window_samples = report.window_global_samples = 160;
  report.window_loss = report.batch_auc = std::nan("");
  report.tasks = {{"click", 0.5, 0.75}, {"buy", std::nan(""), std::nan("")}};
  EXPECT_TRUE(std::isnan(progress.Stats().loss()));
  progress.OnReport(report);
  const WorkerStats stats = progress.Stats();
  EXPECT_TRUE(std::isnan(stats.loss()));
  ASSERT_EQ(stats.task_losses_size(), 2);
  EXPECT_EQ(stats.task_losses(0).loss(), 0.5);
  EXPECT_TRUE(std::isnan(stats.task_losses(1).loss()));
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].at("loss").is_null());
  EXPECT_EQ(lines[0].at("skipped_steps"), 20);
}

TEST_F(WorkerProgressTest, ScansAndScoresAdvance) {
  WorkerProgress progress("job", WorkerRank(2), -1);
  EXPECT_EQ(progress.Stats().phase().name(), "starting");
  EXPECT_EQ(progress.Stats().phase().advances(), 0u);
  progress.OnScan("counting lines", {100, 1000, false});
  EXPECT_EQ(progress.Stats().phase().name(), "counting lines");
  EXPECT_EQ(progress.Stats().phase().done(), 100u);
  EXPECT_EQ(progress.Stats().phase().total(), 1000u);
  EXPECT_EQ(progress.Stats().phase().unit(), "bytes");
  EXPECT_EQ(progress.Stats().phase().advances(), 1u);
  progress.OnScan("counting lines", {1000, 1000, false});
  EXPECT_EQ(progress.Stats().phase().advances(), 2u);
  // The end of the file takes it no further.
  progress.OnScan("counting lines", {1000, 1000, true});
  EXPECT_EQ(progress.Stats().phase().name(), "starting");
  EXPECT_EQ(progress.Stats().phase().advances(), 2u);

  progress.Enter("evaluating");
  EXPECT_EQ(progress.Stats().phase().name(), "evaluating");
  EXPECT_EQ(progress.Stats().phase().advances(), 2u);
  progress.OnScan("skipping to the held-out rows", {300, 1000, false});
  EXPECT_EQ(progress.Stats().phase().name(), "skipping to the held-out rows");
  EXPECT_EQ(progress.Stats().phase().advances(), 3u);
  progress.OnScan("skipping to the held-out rows", {300, 1000, true});
  progress.OnSamples(64, -1);
  progress.OnSamples(128, -1);
  EXPECT_EQ(progress.Stats().phase().name(), "evaluating");
  EXPECT_EQ(progress.Stats().phase().done(), 128u);
  EXPECT_EQ(progress.Stats().phase().total(), 0u);
  EXPECT_EQ(progress.Stats().phase().unit(), "samples");
  EXPECT_EQ(progress.Stats().phase().advances(), 5u);
}

TEST_F(WorkerProgressTest, SaysHowHotAndColdBatchesStand) {
  WorkerProgress progress = Talkative();
  EXPECT_FALSE(progress.Stats().has_hot());
  HotStats hot;
  hot.set_is_hot(true);
  hot.set_rate(12.5);
  hot.set_changes(2);
  hot.set_hot_rows(70);
  progress.OnBatches(hot);
  EXPECT_EQ(progress.Stats().hot().changes(), 2u);
  EXPECT_EQ(progress.Stats().hot().hot_rows(), 70u);
  progress.OnReport({});
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["batches"].dump(), R"({"changes":2,"hot":true,"rate":12.5})");
}

TEST_F(WorkerProgressTest, AChangeHasItsOwnSecondsAtAnEvaluationToo) {
  WorkerProgress progress = Talkative();
  EvaluationPlace place;
  place.step = Step(9);
  ScheduleState next;
  next.set_first_step(10);
  const OrderScoring scoring = {MakeDataPlace(next), absl::Seconds(2)};
  progress.OnScoring({}, place, scoring);
  progress.OnEvaluation({}, place, &scoring, absl::Seconds(5));
  progress.OnEvaluation({}, place, nullptr, absl::Seconds(5));
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0]["change_seconds"], 2.0);
  EXPECT_EQ(lines[1]["change_seconds"], 2.0);
  EXPECT_EQ(lines[1]["seconds"], 5.0);
  EXPECT_EQ(lines[0]["schedule"], lines[1]["schedule"]);
  EXPECT_FALSE(lines[2].contains("change"));
  EXPECT_FALSE(lines[2].contains("change_seconds"));
}

TEST_F(WorkerProgressTest, APhaseThatLastsIsWrittenAndItsEnd) {
  WorkerProgress progress = Talkative();
  progress.OnScan("counting lines", {100, 1000, false});
  progress.OnScan("counting lines", {1000, 1000, true});
  progress.Enter("training");
  progress.Enter("evaluating");
  progress.OnSamples(64, 640);
  progress.Enter("ending");
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(4));
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line["event"], "phase");
    EXPECT_GE(line["seconds"], 0.0);
  }
  EXPECT_EQ(lines[0]["phase"], "counting lines");
  EXPECT_EQ(lines[0]["done"], 100);
  EXPECT_EQ(lines[0]["total"], 1000);
  EXPECT_EQ(lines[0]["unit"], "bytes");
  EXPECT_FALSE(lines[0].contains("ended"));
  EXPECT_EQ(lines[1]["done"], 1000);
  EXPECT_EQ(lines[1]["ended"], true);
  EXPECT_EQ(lines[2]["phase"], "evaluating");
  EXPECT_EQ(lines[2]["unit"], "samples");
  EXPECT_EQ(lines[3]["phase"], "evaluating");
  EXPECT_EQ(lines[3]["ended"], true);
}

TEST_F(WorkerProgressTest, OfAShortPhaseNothingIsWritten) {
  WorkerProgress progress("job", WorkerRank(2), fds_[1], absl::Hours(1));
  progress.OnScan("counting lines", {100, 1000, false});
  progress.OnScan("counting lines", {1000, 1000, true});
  progress.Enter("evaluating");
  progress.OnSamples(64, 640);
  progress.Enter("ending");
  EXPECT_THAT(Lines(), IsEmpty());
}

}  // namespace
}  // namespace thermocline
