#include "worker/train/script_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/train/testing/script_fixture.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class ScriptRunTest : public ScriptTest {
 protected:
  // The last message that the script got, where it answers with that.
  std::string Echo() {
    const absl::Status status = run_->Await(TC_STEP).status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    return std::string(status.message());
  }
  static EvaluationResult Figures(int64_t samples) {
    EvaluationResult result;
    result.samples = samples;
    result.auc = 0.75;
    return result;
  }
};

TEST_F(ScriptRunTest, WhatGoesWrongBeforeOrInAStep) {
  const ScriptError kErrors[] = {
      // How it ends.
      {"exit=3", Code::kAborted, true, "the script exited with code 3, before it was done"},
      {"hello exit=0", Code::kAborted, true, "the script exited with code 0, before it was done"},
      {"hello close exit=4", Code::kAborted, true, "the script exited with code 4"},
      {"hello signal=11", Code::kAborted, true, "the script was killed by signal 11"},
      {"hello signal=6", Code::kAborted, true, "the script was killed by signal 6"},
      {"hello signal=9", Code::kUnavailable, false, "the script was killed by signal 9"},
      {"signal=15", Code::kUnavailable, false, "the script was killed by signal 15"},
      {"hello failed,text=KeyError exit=1", Code::kAborted, true, "the script failed:\nKeyError"},
      {"failed,text=ImportError exit=1", Code::kAborted, true, "the script failed:\nImportError"},
      // What it sends.
      {"ready,text=9.8.7 stay", Code::kFailedPrecondition, true,
       "the script's library is of version 9.8.7"},
      {"evaluate stay", Code::kFailedPrecondition, true,
       "answers the worker's hello with a message of kind 37"},
      {"hello done stay", Code::kFailedPrecondition, true,
       "has left its run before training was over"},
      {"hello evaluate stay", Code::kFailedPrecondition, true,
       "calls run.evaluate() before training is over"},
      {"hello state,bytes=5 stay", Code::kFailedPrecondition, true,
       "sends a message of kind 36 where the worker waits for one of kind 33"},
      {"hello step stay", Code::kInvalidArgument, true, "an answer to batch 0"},
      {"hello 77 stay", Code::kInvalidArgument, true, "a message of kind 77"},
      {"hello state,bytes=524289 stay", Code::kResourceExhausted, true,
       "the script's state has 524289 bytes, and at most 524288 can be kept, half of "
       "cluster.max_pending_size"},
      {"hello state,bytes=5,unsealed=1 stay", Code::kInvalidArgument, true,
       "a state that is not a sealed"},
  };
  for (const ScriptError& expected : kErrors) {
    SCOPED_TRACE(expected.actions);
    Start(expected.actions);
    ExpectScriptError(run_->Await(TC_STEP).status(), expected);
    EXPECT_EQ(done_, 0);
  }
}

TEST_F(ScriptRunTest, TheJobIsWhatTheScriptKnows) {
  Start("hello job");
  const std::string text = Echo();
  const auto job = nlohmann::json::parse(text.substr(text.find('{')));
  EXPECT_EQ(job["max_state_bytes"], 512 << 10);
  EXPECT_EQ(job["loads"], false);
  EXPECT_EQ(job["own_metric"], "own");
  EXPECT_EQ(job["dims"], std::vector<int>{4});
  EXPECT_EQ(job["features"].size(), 2u);
}

TEST_F(ScriptRunTest, AnErrorOfTheHookEndsTheWaitAndIsNoFailureOfTheScript) {
  Start("hello stay");
  ScriptHooks hooks;
  hooks.on_wait = [] { return absl::UnavailableError("server 1 is lost"); };
  run_->set_hooks(hooks);
  EXPECT_EQ(run_->Await(TC_STEP).status(), absl::UnavailableError("server 1 is lost"));
}

TEST_F(ScriptRunTest, WhyTheWorkerEndsReachesTheScript) {
  Start("hello next echo");
  ASSERT_TRUE(run_->Connect().ok());
  run_->OnError(absl::InvalidArgumentError("a.csv, line 7: no number"));
  EXPECT_EQ(Echo(), "the script failed:\na.csv, line 7: no number");
  Start("stay");  // It hasn't connected.
  run_->OnError(absl::InvalidArgumentError("a.csv, line 7: no number"));
}

TEST_F(ScriptRunTest, WarningsOfTheScriptAreShown) {
  Start("hello warning,text=first warning,text=second exit=0");
  EXPECT_FALSE(run_->Await(TC_STEP).ok());
  EXPECT_THAT(warnings_, ElementsAre("first", "second"));
}

TEST_F(ScriptRunTest, AfterTrainingTheScriptScoresAsOftenAsItLikes) {
  for (const auto& [actions, times] : {std::pair("hello next done", 0),
                                       {"hello next evaluate next done", 1},
                                       {"hello next evaluate next evaluate next done", 2}}) {
    SCOPED_TRACE(actions);
    Start(actions);
    ASSERT_TRUE(run_->EndTraining().ok());
    for (int i = 0; i < times; ++i) {
      const absl::StatusOr<bool> scores = run_->WantsScores(/*is_due=*/i == 0);
      ASSERT_TRUE(scores.ok()) << scores.status();
      EXPECT_TRUE(*scores);
      EvaluationResult figures = Figures(9);
      run_->set_own_metric(0.5);
      ASSERT_TRUE(run_->CompleteEvaluation(&figures).ok());
      EXPECT_EQ(figures.own_metric, 0.5);
    }
    const absl::StatusOr<bool> scores = run_->WantsScores(/*is_due=*/times == 0);
    ASSERT_TRUE(scores.ok()) << scores.status();
    EXPECT_FALSE(*scores);
    const absl::Status ended = run_->AwaitEnd();
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_EQ(std::exchange(done_, 0), 1);
    EXPECT_THAT(warnings_, IsEmpty());
  }
}

TEST_F(ScriptRunTest, TheScriptGetsItsFigures) {
  Start("hello next evaluate next echo");
  ASSERT_TRUE(run_->EndTraining().ok());
  ASSERT_TRUE(run_->WantsScores(/*is_due=*/true).ok());
  run_->set_own_metric(0.5);
  EvaluationResult figures = Figures(9);
  ASSERT_TRUE(run_->CompleteEvaluation(&figures).ok());
  const absl::Status failed = run_->WantsScores(/*is_due=*/false).status();
  EXPECT_EQ(failed.code(), Code::kAborted);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("\"auc\":0.75"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("\"phase\":\"evaluated\""));
}

TEST_F(ScriptRunTest, WhatGoesWrongAfterTraining) {
  const ScriptError kErrors[] = {
      {"hello next 32,text=1 stay", Code::kFailedPrecondition, true, "is of version 1"},
      {"hello next state stay", Code::kFailedPrecondition, true,
       "sends a message of kind 36 after training"},
      {"hello next evaluate state stay", Code::kFailedPrecondition, true,
       "sends a message of kind 36 after training"},
      {"hello next exit=2", Code::kAborted, true, "exited with code 2, before it was done"},
      {"hello next evaluate signal=9", Code::kUnavailable, false, "killed by signal 9"},
  };
  for (const ScriptError& expected : kErrors) {
    SCOPED_TRACE(expected.actions);
    Start(expected.actions);
    absl::Status status = run_->EndTraining();
    for (int i = 0; status.ok() && i < 2; ++i) status = run_->WantsScores(/*is_due=*/true).status();
    ExpectScriptError(status, expected);
    EXPECT_EQ(done_, 0);
  }
}

TEST_F(ScriptRunTest, AFailureAfterTheJobIsAWarning) {
  for (const auto& [end, words] : {std::pair("exit=3", "exited with code 3"),
                                   {"signal=11", "was killed by signal 11"},
                                   {"signal=9", "was killed by signal 9"}}) {
    Start(absl::StrCat("hello next done ", end));
    ASSERT_TRUE(run_->EndTraining().ok());
    ASSERT_TRUE(run_->WantsScores(/*is_due=*/true).ok());
    const absl::Status ended = run_->AwaitEnd();
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_THAT(std::exchange(warnings_, {}),
                ElementsAre(HasSubstr(absl::StrCat("the job is done, but the script ", words))));
  }
}

TEST_F(ScriptRunTest, AMetricOfItsOwnIsANumber) {
  Start("hello next stay");
  EvaluationResult figures = Figures(0);
  EXPECT_TRUE(run_->CompleteEvaluation(&figures).ok()) << "nothing is held out";
  figures = Figures(9);
  const absl::Status status = run_->CompleteEvaluation(&figures);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nan for its metric 'own'"));
}

}  // namespace
}  // namespace thermocline
