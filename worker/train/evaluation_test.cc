#include "worker/train/evaluation.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/job/job_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using testing::ElementsAre;

Job JobOf(const std::string& data, const std::string& tasks) {
  const auto job = ParseJob(R"(name: "j" data { train { path: "p" csv { header: true } }
        label { column: ["click", "buy"] )" +
                                data + R"( } }
        feature { column: "id" } layer { name: "deep" input: "id" mlp { units: 4 } } )" +
                                tasks +
                                R"( evaluate { every_passes: 1 }
        train { batch_size: 4 learning_rate { base: 0.1 } })",
                            "j", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Batch BatchOf(int tasks, UninitializedVector<float> labels, UninitializedVector<float> weights) {
  Batch batch;
  batch.num_tasks = tasks;
  batch.size = static_cast<int>(labels.size()) / tasks;
  batch.labels = std::move(labels);
  batch.weights = std::move(weights);
  return batch;
}

constexpr char kTwoTasks[] =
    "task { label: 'buy' input: 'deep' weight: 0.5 } task { label: 'click' input: 'deep' }";

TEST(TaskSamples, EachTaskHasTheRowsWithItsLabel) {
  Job job = JobOf("may_be_missing: true", kTwoTasks);
  EXPECT_EQ(job.evaluate().task(), "buy") << "the first decides";
  job.mutable_evaluate()->set_task("click");
  TaskSamples samples(job);
  EXPECT_TRUE(samples.WithoutLabels().empty()) << "there is no row";
  // Labels of buy and click, sample by sample; logits task by task.
  samples.Add(BatchOf(2, {0, 1, 0, 0}, {0, 1, 0, 1}), std::vector<float>{0, 0, 1, -1});
  EXPECT_THAT(samples.WithoutLabels(), ElementsAre("buy"));
  EXPECT_TRUE(std::isnan(samples.Compute().tasks[0].auc));
  EXPECT_TRUE(std::isnan(samples.Compute().tasks[0].logloss)) << "no silent zero";
  samples.Add(BatchOf(2, {1, 0, 0, 0, 1, 1}, {1, 0, 1, 1, 1, 1}),
              std::vector<float>{2, -2, 9, 0, 1, 9}, /*most=*/4);
  EXPECT_EQ(samples.rows(), 4);
  EXPECT_EQ(samples.num_labels(), 5) << "two of buy, three of click";
  const EvaluationResult result = samples.Compute();
  EXPECT_EQ(result.samples, 4);
  EXPECT_EQ(result.task, "click");
  ASSERT_EQ(result.tasks.size(), 2u);
  EXPECT_EQ(result.tasks[0].label, "buy");
  EXPECT_EQ(result.tasks[0].samples, 2);
  EXPECT_EQ(result.tasks[0].auc, 1);
  EXPECT_NEAR(result.tasks[0].logloss, std::log1p(std::exp(-2.0)), 1e-9);
  EXPECT_EQ(result.tasks[1].samples, 3);
  // The positive one scores 1, the others -1 and 1.
  EXPECT_EQ(result.tasks[1].auc, 0.75);
  EXPECT_EQ(result.auc, 0.75);
  EXPECT_NEAR(result.loss, 0.5 * result.tasks[0].logloss * 2 / 4 + result.logloss * 3 / 4, 1e-12);

  nlohmann::json json;
  AddMetrics(result, &json);
  EXPECT_EQ(json["task"], "click");
  EXPECT_EQ(json["auc"], 0.75);
  EXPECT_EQ(json["loss"], result.loss);
  EXPECT_EQ(json["tasks"][0]["label"], "buy");
  EXPECT_EQ(json["tasks"][0]["samples"], 2);
  EXPECT_EQ(json["tasks"][1]["auc"], 0.75);
}

TEST(TaskSamples, OneTaskHasMetricsAlone) {
  TaskSamples samples(JobOf("", "task { label: 'click' input: 'deep' weight: 0.5 }"));
  // A sample that weighs nothing is one all the same, where labels are never missing.
  samples.Add(BatchOf(1, {1, 0, 0}, {2, 1, 0}), std::vector<float>{1, -1, 5});
  const EvaluationResult result = samples.Compute();
  EXPECT_EQ(result.samples, 3);
  EXPECT_EQ(result.auc, 1);
  EXPECT_EQ(result.loss, result.logloss);
  EXPECT_TRUE(result.tasks.empty());
  nlohmann::json json;
  AddMetrics(result, &json);
  EXPECT_FALSE(json.contains("tasks") || json.contains("task") || json.contains("loss"));
}

// What follows the loss of held-out rows ends the job where there is none.
TEST(CheckLoss, WantsALabel) {
  const std::string one = "task { label: 'buy' input: 'deep' }";
  for (const std::string& tasks : {one, std::string(kTwoTasks)}) {
    const Job job = JobOf("may_be_missing: true", tasks);
    TaskSamples samples(job);
    const int labels = job.task_size();
    samples.Add(BatchOf(labels, UninitializedVector<float>(2 * labels, 0.0f),
                        UninitializedVector<float>(2 * labels, 0.0f)),
                std::vector<float>(2 * labels, 1.0f));
    const absl::Status status = CheckLoss(job, samples.Compute(), "`fae`");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                testing::HasSubstr("the job has `fae`, and none of the 2 held-out rows that it "
                                   "scores has the label 'buy'"));
    UninitializedVector<float> weights(labels, 0.0f);
    weights[0] = 1;
    samples.Add(BatchOf(labels, UninitializedVector<float>(labels, 1.0f), weights),
                std::vector<float>(labels, 1.0f));
    EXPECT_TRUE(CheckLoss(job, samples.Compute(), "`fae`").ok()) << "of one task is enough";
  }
}

TEST(TaskSamples, ScoredRowsCountAlikeWhereSoAsked) {
  TaskSamples samples(JobOf("", kTwoTasks), /*count_alike=*/true);
  Batch batch = BatchOf(2, {1, NAN, 0, 1}, {2, 2, 3, 3});
  batch.groups = {1, 2};
  samples.Add(batch, std::vector<float>{1, -1, 0, 0});
  const EvaluationResult result = samples.Compute();
  EXPECT_NEAR(result.tasks[0].logloss, std::log1p(std::exp(-1.0)), 1e-9) << "no weights";
  EXPECT_FALSE(result.gauc.has_value());
  EXPECT_EQ(result.tasks[1].samples, 1) << "a label that is not a number is none";
}

}  // namespace
}  // namespace thermocline
