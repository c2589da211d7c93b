#include "worker/train/script_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "worker/train/run_options.h"
#include "worker/train/testing/script_fixture.h"

namespace thermocline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

constexpr int kDim = 4;

// A batch of 3 samples: keys 7, 8, 7 in the first table, one of its features; lists with the keys
// 5, 6 and 5 in the second.
class ScriptStepTest : public ScriptTest {
 protected:
  void Start(const std::string& actions) {
    step_ = nullptr;
    ScriptTest::Start(actions);
    step_ = std::make_unique<ScriptStep>(tables_, device_.get(), run_.get());
    Begin(Step(0));
  }
  void Begin(Step step) {
    context_ = std::make_unique<StepContext>();
    context_->batch = std::make_unique<Batch>();
    Batch& batch = *context_->batch;
    batch.step = step;
    batch.size = 3;
    batch.num_dense = 2;
    batch.dense_stride = PaddedDenseColumns(2);
    batch.dense.resize(3 * batch.dense_stride);
    std::fill(batch.dense.begin(), batch.dense.end(), 0.5f);
    batch.labels = {1, 0, 1};
    batch.features.resize(2);
    batch.features[0].keys = {7, 8, 7};
    batch.features[0].offsets = {0, 1, 2, 3};
    batch.features[1].keys = {5, 6, 5};
    batch.features[1].offsets = {0, 2, 2, 3};
    MakePlanner(tables_, /*num_servers=*/1, /*places=*/{}).Plan(batch, &context_->plan);
    context_->Begin(std::make_unique<StepTransfers>(device_.get()));
    context_->learning_rate = 0.1f;
    rows_.assign(2 * 2 * kDim, 0.25f);
    gradients_.assign(2 * 2 * kDim, -1);
    context_->tables.resize(2);
    for (size_t t = 0; t < 2; ++t) {
      context_->tables[t].rows = {&rows_[t * 2 * kDim], 2, kDim, kDim};
      context_->tables[t].gradients = {&gradients_[t * 2 * kDim], 2, kDim, kDim};
    }
  }
  absl::Status Train() {
    const absl::Status sent = step_->Forward(context_.get());
    return sent.ok() ? step_->BackwardToRows(context_.get()) : sent;
  }

  const JobTables tables_ = ResolveTables(MakeJob());
  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  std::vector<float> rows_, gradients_;
  std::unique_ptr<StepContext> context_;
  std::unique_ptr<ScriptStep> step_;
};

TEST_F(ScriptStepTest, TakesGradientsOfTheRowsThatHaveOne) {
  Start("hello next fill=2 step,value=1.5 next fill=3 step,rate=0.5 stay");
  ASSERT_TRUE(Train().ok());
  EXPECT_EQ(context_->outcome()->loss_sums[0], 1.5);
  EXPECT_EQ(context_->learning_rate, 0.1f) << "the job's";
  EXPECT_FALSE(context_->is_skipped);
  EXPECT_THAT(context_->tables[0].has_gradient, IsEmpty()) << "all have one";
  EXPECT_THAT(context_->tables[1].has_gradient, ElementsAre(1, 0));
  EXPECT_EQ(gradients_, (std::vector<float>{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, -1, -1, -1, -1}));
  Begin(Step(1));
  ASSERT_TRUE(Train().ok());
  EXPECT_EQ(context_->learning_rate, 0.5f);
  EXPECT_EQ(gradients_[0], 3);
}

TEST_F(ScriptStepTest, ASkippedStepTakesNone) {
  Start("hello next fill=2 step,value=nan,flags=2 stay");
  ASSERT_TRUE(Train().ok());
  EXPECT_TRUE(context_->is_skipped);
  EXPECT_EQ(context_->outcome()->loss_sums[0], 0);
  for (const TableOperands& table : context_->tables) {
    EXPECT_THAT(table.has_gradient, ElementsAre(0, 0));
  }
  EXPECT_THAT(gradients_, Each(-1));
}

TEST_F(ScriptStepTest, TheLearningRateMayBeZero) {
  Start("hello next step,rate=0 stay");
  ASSERT_TRUE(Train().ok());
  EXPECT_EQ(context_->learning_rate, 0);
}

TEST_F(ScriptStepTest, WhatIsNoAnswerToTheBatch) {
  const ScriptError kErrors[] = {
      {"hello next step,step=1 stay", Code::kFailedPrecondition, true,
       "closes step 1 where step 0 is open"},
      {"hello next step,step=-1 stay", Code::kFailedPrecondition, true, "closes step -1"},
      {"hello next step,slot=1 stay", Code::kInvalidArgument, true, "an answer to batch 1"},
      {"hello next step,slot=4294967295 stay", Code::kInvalidArgument, true,
       "an answer to batch 4294967295"},
      {"hello next step,rate=-0.5 stay", Code::kFailedPrecondition, true,
       "gives step 0 a learning rate of -0.5; it must be finite, and 0 or more"},
      {"hello next step,rate=inf stay", Code::kFailedPrecondition, true, "a learning rate of inf"},
      {"hello next scores stay", Code::kFailedPrecondition, true, "sends a message of kind 34"},
      {"hello next evaluate stay", Code::kFailedPrecondition, true, "before training is over"},
      {"hello next done exit=0", Code::kFailedPrecondition, true, "before training was over"},
      {"hello next release step stay", Code::kInvalidArgument, true, "an answer to batch 0"},
      {"hello next exit=1", Code::kAborted, true, "exited with code 1"},
      {"hello next signal=9", Code::kUnavailable, false, "was killed by signal 9"},
  };
  for (const ScriptError& expected : kErrors) {
    SCOPED_TRACE(expected.actions);
    Start(expected.actions);
    ExpectScriptError(Train(), expected);
  }
}

TEST_F(ScriptStepTest, AnAnswerToABatchThatIsKeptIsNoneToTheNext) {
  Start("hello next step next step,slot=0,step=1 stay");
  ASSERT_TRUE(Train().ok());
  Begin(Step(1));
  const ScriptError expected = {"", Code::kFailedPrecondition, true, "answers another batch"};
  ExpectScriptError(Train(), expected);
}

TEST_F(ScriptStepTest, ScoresABatchAndTakesTheMetricOfTheLast) {
  Start("hello next fill=0.5 scores release next fill=0.75 scores stay");
  std::vector<float> logits;
  context_->behind.kind = StepBehind::Kind::kStep;
  ASSERT_TRUE(step_->Score(context_.get(), &logits).ok());
  EXPECT_THAT(logits, ElementsAre(0.5f, 0.5f, 0.5f));
  EvaluationResult figures;
  figures.samples = 6;
  EXPECT_TRUE(absl::IsInvalidArgument(run_->CompleteEvaluation(&figures))) << "no metric yet";
  Begin(Step(1));
  ASSERT_TRUE(step_->Score(context_.get(), &logits).ok());
  EXPECT_THAT(logits, ElementsAre(0.75f, 0.75f, 0.75f));
  ASSERT_TRUE(run_->CompleteEvaluation(&figures).ok());
  EXPECT_EQ(figures.own_metric, 0.75);
}

TEST_F(ScriptStepTest, WhatIsNoScore) {
  const ScriptError kErrors[] = {
      {"hello next step stay", Code::kFailedPrecondition, true, "sends a message of kind 33"},
      {"hello next scores,slot=1 stay", Code::kInvalidArgument, true, "an answer to batch 1"},
      {"hello next failed,text=KeyError", Code::kAborted, true, "the script failed:\nKeyError"},
  };
  std::vector<float> logits;
  for (const ScriptError& expected : kErrors) {
    SCOPED_TRACE(expected.actions);
    Start(expected.actions);
    ExpectScriptError(step_->Score(context_.get(), &logits), expected);
  }
}

}  // namespace
}  // namespace thermocline
