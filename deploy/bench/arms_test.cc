#include "deploy/bench/arms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Job ResolvedJob(const std::string& more = "") {
  const auto job = ParseJob(R"(name: "j"
data { format: CRITEO_TSV path: "log.tsv" num_categorical: 2 }
default_table { dim: 6 optimizer { adagrad {} } }
dlrm { bottom: [8] top: [8] }
train { batch_size: 100 learning_rate { base: 0.1 } }
)" + more,
                            "j.textproto", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

RunFigures RunAt(double samples_per_s, double auc) {
  RunFigures run;
  run.steps = 10;
  run.samples = 1000;
  run.samples_per_s = samples_per_s;
  run.train_s = 1000 / samples_per_s;
  run.auc = auc;
  run.wire_bytes_per_sample = 64;
  run.stage_us = {{"forward", 1.5}};
  run.points = {{5, run.train_s / 2, auc - 0.1, 0.6, 1, true, std::nullopt},
                {10, run.train_s, auc, 0.5, 1, true, std::nullopt}};
  return run;
}

TEST(Arms, NamesAreReadBack) {
  for (const Arm arm : AllArms()) EXPECT_THAT(*ParseArms(ArmName(arm)), ElementsAre(arm));
  EXPECT_THAT(*ParseArms("cache,remote-cpu"), ElementsAre(Arm::kCache, Arm::kRemoteCpu));
  EXPECT_EQ(ParseArms("cahce").status(),
            absl::InvalidArgumentError("--arms: 'cahce' is no arm (did you mean 'cache'?)"));
  EXPECT_EQ(ParseArms("fae,").status(), absl::InvalidArgumentError("--arms: '' is no arm"));
  EXPECT_EQ(ParseArms("fae,fae").status(), absl::InvalidArgumentError("--arms names fae twice"));
}

TEST(Arms, BudgetsAscend) {
  EXPECT_THAT(*ParseBudgets("2MiB,64KiB,2MiB"), ElementsAre(64 << 10, 2 << 20));
  EXPECT_THAT(ParseBudgets("1MB").status().message(), HasSubstr("--budgets: '1MB': a size is"));
  EXPECT_THAT(ParseBudgets("").status().message(), HasSubstr("--budgets: ''"));
  EXPECT_THAT(ParseBudgets("0B").status().message(), HasSubstr("holds no row"));
}

// What an arm changes must give a job that `train` takes.
TEST(Arms, EveryArmIsAJob) {
  for (const char* more : {"", "cache { budget: \"9MiB\" }",
                           "fae { budget: \"9MiB\" } calibration { sample_share: 0.5 }"}) {
    const Job job = ResolvedJob(more);
    const std::string text = JobToText(job);
    for (const Arm arm : AllArms()) {
      const JobChange change = ChangeOf(arm, job, 1 << 20, "/packs");
      const auto changed = ParseJob(text, "j", change.set, change.clear);
      ASSERT_TRUE(changed.ok()) << ArmName(arm) << more << ": " << changed.status();
      const bool is_fae = arm == Arm::kFae || arm == Arm::kFaeStatic;
      const bool is_cache = arm == Arm::kCache || arm == Arm::kCacheStatic;
      EXPECT_EQ(changed->has_fae(), is_fae) << ArmName(arm) << more;
      EXPECT_EQ(changed->has_cache(), is_cache) << ArmName(arm) << more;
      if (is_fae) {
        EXPECT_EQ(changed->fae().budget(), "1048576B");
        EXPECT_EQ(changed->fae().schedule().fixed(), arm == Arm::kFaeStatic);
        EXPECT_EQ(changed->calibration().directory(), "/packs");
      }
      if (is_cache) {
        EXPECT_EQ(changed->cache().policy() == Cache::STATIC, arm == Arm::kCacheStatic);
      }
    }
    EXPECT_THAT(ChangeOf(Arm::kRemoteGpu, job, 0, "").set, Contains("device=CUDA"));
    EXPECT_THAT(ChangeOf(Arm::kRemoteCpu, job, 0, "").set, Contains("device=CPU"));
  }
}

// Weights and Adagrad's state of dim 6 are 12 floats; two tables have a row for each sample.
TEST(Arms, ACacheGetsRoomForABatchBesideTheRowsThatItHolds) {
  EXPECT_EQ(CacheBudget(ResolvedJob(), 1000), 1000u + 2 * 100 * 12 * 4);
  // Several workers: a third of it for each of the rows, of those that it sends, and of gradients.
  EXPECT_EQ(CacheBudget(ResolvedJob("cluster { workers: 2 }"), 1000), 1000u + 2 * 50 * 3 * 6 * 4);
}

TEST(Arms, RunsAreEvaluatedEquallyOftenAndEndTogether) {
  EXPECT_THAT(CommonChange(ResolvedJob(), 1000, 20).set, Contains("evaluate.every_steps=50"));
  EXPECT_THAT(CommonChange(ResolvedJob(), 3, 20).set, Contains("evaluate.every_steps=1"));
  EXPECT_THAT(CommonChange(ResolvedJob(), 1000, 0).set, ElementsAre("checkpoint.none=true"));
  const Job own = ResolvedJob(
      "evaluate { every_steps: 7 patience: 2 } checkpoint { every_steps: 5 directory: \"/c\" }");
  const JobChange evaluated = CommonChange(own, 1000, 20);
  EXPECT_THAT(evaluated.clear, IsEmpty());
  EXPECT_THAT(evaluated.set, ElementsAre("checkpoint.none=true", "evaluate.patience=0",
                                         "evaluate.keep_best=false"));
  const auto changed = ParseJob(JobToText(own), "j", evaluated.set, evaluated.clear);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(WritesCheckpoints(*changed));
  // A run that is timed has no evaluations.
  const JobChange timed = CommonChange(own, 1000, 0);
  EXPECT_THAT(timed.clear, ElementsAre("evaluate"));
  EXPECT_THAT(timed.set, ElementsAre("checkpoint.none=true"));
}

TEST(Arms, TheTargetIsBelowEveryRunOfRemoteCpu) {
  EXPECT_FALSE(TargetAuc({}).has_value());
  std::vector<ArmRuns> arms(2);
  arms[0].arm = Arm::kFae;
  arms[0].runs = {RunAt(100, 0.5)};
  EXPECT_FALSE(TargetAuc(arms).has_value());
  arms[1].arm = Arm::kRemoteCpu;
  arms[1].runs = {RunAt(100, 0.76), RunAt(100, 0.75)};
  EXPECT_NEAR(TargetAuc(arms).value(), 0.74, 1e-12);
}

std::vector<ArmRuns> SomeArms() {
  std::vector<ArmRuns> arms(3);
  arms[0] = {
      Arm::kRemoteCpu, 0, "", {1, 2, 3}, {RunAt(100, 0.75), RunAt(300, 0.76), RunAt(200, 0.77)}};
  arms[1] = {Arm::kRemoteGpu, 0, "this machine has no GPU, none", {}, {}};
  arms[2] = {Arm::kFae, 1 << 20, "", {1, 2}, {RunAt(500, 0.76), RunAt(400, 0.6)}};
  for (RunFigures& run : arms[2].runs) run.hot_share = 0.125;
  arms[2].runs[0].calibrate_s = 10;
  arms[2].runs[0].pack_s = 20;
  for (RunFigures& run : arms[2].runs) run.pack = "/packs/ab.pack";
  arms[2].runs[1].reuses_pack = true;
  return arms;
}

TEST(Arms, TableHasMediansAndSaysWhatIsNotThere) {
  const std::string text = RenderArms(SomeArms(), 0.75);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_THAT(lines[0], HasSubstr("s to 0.7500"));
  EXPECT_THAT(lines[2], testing::ContainsRegex(
                            "remote-cpu +- +200 +100 .. 300 +5.0 +5.0 +0.7600 +0.7500 .. 0.7700 "
                            "+64 +- +- +- +- +-$"));
  EXPECT_THAT(lines[3], testing::ContainsRegex("remote-gpu +- +- +- +- "));
  // One of two runs comes to the AUC, after 2 s; 30 s before that count beside it.
  EXPECT_THAT(lines[4], testing::ContainsRegex("fae +1.0 MiB +450 +400 .. 500 +2.0 \\(1 of 2\\) "
                                               "+32.0 .*12.5% +10.0 +20.0$"));
  EXPECT_THAT(text, HasSubstr("\nremote-gpu: this machine has no GPU, none\n"));
  EXPECT_THAT(text, testing::ContainsRegex("forward +1.50 +1.50"));
  EXPECT_THAT(RenderArms(SomeArms(), 0.9), HasSubstr("never"));
  EXPECT_THAT(RenderArms(SomeArms(), std::nullopt), Not(HasSubstr("never")));
}

TEST(Arms, CsvHasALineForEachRun) {
  const std::vector<std::string> lines = absl::StrSplit(ArmsCsv(SomeArms(), 0.75), '\n');
  ASSERT_EQ(lines.size(), 1u + 3 + 1 + 2 + 1);
  EXPECT_THAT(lines[0], testing::StartsWith("arm,budget_bytes,seed,"));
  EXPECT_THAT(lines[0], testing::EndsWith(",us forward"));
  EXPECT_THAT(lines[1], testing::StartsWith("remote-cpu,0,1,,10,1000,10,100,0.75,,0.75,10,64,"));
  EXPECT_THAT(lines[4], HasSubstr(",\"this machine has no GPU, none\","));
  EXPECT_THAT(lines[5], testing::StartsWith("fae,1048576,1,"));
  EXPECT_THAT(lines[5], HasSubstr(",10,20,0,")) << "it made the pack";
  EXPECT_THAT(lines[6], HasSubstr(",,,1,")) << "it found it";
  const size_t columns = std::vector<std::string>(absl::StrSplit(lines[0], ',')).size();
  for (const size_t line : {1, 2, 3, 5, 6}) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines[line], ',')).size(), columns);
  }
  const std::vector<std::string> curves = absl::StrSplit(CurvesCsv(SomeArms()), '\n');
  ASSERT_EQ(curves.size(), 1u + 5 * 2 + 1);
  EXPECT_EQ(curves[1], "remote-cpu,0,1,5,5,0.65,0.6,1,");
}

}  // namespace
}  // namespace thermocline
