// How a job whose model is a script is judged when the script fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "deploy/job/job_machine.h"
#include "deploy/job/testing/job_machine_fixture.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using What = GenerationOutcome::What;

const ProcessEnd kRaised = {5, "exited with code 5 (failed: ABORTED: the script ... KeyError: 'x')",
                            "exited with code 5; its log: worker-0.log",
                            "the script ended with code 1\nTraceback\nKeyError: 'x'"};

// One server and one worker.
class JobMachineScriptTest : public JobMachineTestBase {
 protected:
  JobMachineScriptTest() : JobMachineTestBase(1, 1) {
    options_.job.mutable_worker()->add_command("train.py");
    CheckpointPolicy& checkpoint = *options_.job.mutable_checkpoint();
    checkpoint.set_every_steps(10);
    checkpoint.set_max_rollbacks(20);
  }

  void Train() {
    Open();
    Started("server 0");
    Take(event::Configured{Id("server 0"), absl::OkStatus()});
    Started("worker 0");
    EXPECT_EQ(machine().stage(), JobMachine::Stage::kTraining);
  }
  void Raise(int64_t step) {
    Take(event::ScriptFailed{generation(), Step(step)});
    End("worker 0", kRaised);
  }
  // What ended is judged, and no process is left. Keeps the actions that follow only.
  void Conclude() {
    Settle();
    actions_.clear();
    Take(event::AllStopped{});
  }
};

TEST_F(JobMachineScriptTest, AScriptThatFailsTwiceAtAStepEndsTheJob) {
  Train();
  Raise(15);
  Conclude();
  const GenerationStart next = Only<action::Open>().start;
  EXPECT_EQ(next.generation, 2u);
  EXPECT_EQ(next.spent.scripts().times(), 1u);
  EXPECT_EQ(next.spent.scripts().steps(), 15u);
  EXPECT_EQ(lines_.back(),
            "worker 0 exited with code 5 (failed: ABORTED: the script ... KeyError: 'x'); going "
            "back to the beginning (generation 2)");
  Train();
  // The launcher sees more of the job's steps than the first time, and the script got no further.
  Take(event::Progressed{2, 15, 150});
  Raise(15);
  Conclude();
  const std::vector<action::ReportLimit> limits = All<action::ReportLimit>();
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].field, "worker");
  EXPECT_EQ(limits[0].limit, 1u);
  const GenerationOutcome outcome = Only<action::Finish>().outcome;
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(RecordOf(outcome).what(), JobOutcome::FAILED);
  EXPECT_EQ(outcome.status,
            absl::AbortedError("the script ended with code 1\nTraceback\nKeyError: 'x'\n"
                               "  | worker 0 exited with code 5; its log: worker-0.log\n"
                               "the script failed twice before the job had got past step 15"));
}

TEST_F(JobMachineScriptTest, FailuresCountAnewOnceTheJobGotPastTheStep) {
  for (const int64_t step : {15, 16, 17, 40}) {
    Train();
    Raise(step);
    Conclude();
    EXPECT_EQ(Only<action::Open>().start.spent.scripts().steps(), static_cast<uint64_t>(step));
  }
  Train();
  Raise(39);
  Conclude();
  EXPECT_THAT(std::string(Only<action::Finish>().outcome.status.message()),
              HasSubstr("the script failed twice before the job had got past step 40"));
}

TEST_F(JobMachineScriptTest, AFailureAtAStepThatTheJobGotPastBeforeALossIsAFirstOne) {
  Train();
  Raise(15);
  Conclude();
  Train();
  Take(event::Progressed{generation(), 1000, 10000});
  options_.job.mutable_cluster()->set_durability(NONE);
  End("server 0", kKilled);
  Conclude();
  Train();
  Raise(10);
  Conclude();
  EXPECT_EQ(Only<action::Open>().start.spent.scripts().times(), 1u);
  Train();
  Raise(10);
  Conclude();
  EXPECT_EQ(Only<action::Finish>().outcome.what, What::kFailed);
}

// Such as for want of a module.
TEST_F(JobMachineScriptTest, AScriptThatFailsBeforeTheFirstStepIsStartedOnceMore) {
  for (const bool is_known : {true, false}) {
    SCOPED_TRACE(is_known);
    machine_.reset();
    Train();
    for (const bool is_last : {false, true}) {
      if (is_known) Take(event::ScriptFailed{generation(), Step(0)});
      End("worker 0", kRaised);
      Conclude();
      EXPECT_EQ(All<action::Finish>().size(), is_last ? 1u : 0u);
      if (!is_last) Train();
    }
    EXPECT_THAT(std::string(Only<action::Finish>().outcome.status.message()),
                HasSubstr("the script failed twice before the job had got past step 0"));
  }
}

TEST_F(JobMachineScriptTest, BesideALostProcessItsFailureIsAConsequence) {
  options_.job.mutable_cluster()->set_durability(NONE);
  for (int i = 0; i < 3; ++i) {
    Train();
    Raise(15);
    End("server 0", kKilled);
    Conclude();
    EXPECT_EQ(Only<action::Open>().start.spent.scripts().times(), 0u);
  }
}

TEST_F(JobMachineScriptTest, WithoutCheckpointsTheFirstFailureEndsTheJob) {
  options_.job.clear_checkpoint();
  Train();
  Raise(15);
  Conclude();
  const GenerationOutcome outcome = Only<action::Finish>().outcome;
  EXPECT_EQ(outcome.status,
            absl::AbortedError("the script ended with code 1\nTraceback\nKeyError: 'x'\n"
                               "  | worker 0 exited with code 5; its log: worker-0.log"));
  EXPECT_THAT(std::string(outcome.status.message()), Not(HasSubstr("twice")));
}

TEST_F(JobMachineScriptTest, AScriptThatASignalKilledIsAnOrdinaryLoss) {
  for (int i = 0; i < 3; ++i) {
    Train();
    Take(event::ScriptFailed{generation(), Step(15)});
    End("worker 0", {4, "exited with code 4 (the script was killed)", "exited"});
    Conclude();
    EXPECT_EQ(Only<action::Open>().start.spent.scripts().times(), 0u);
  }
}

TEST_F(JobMachineScriptTest, AnotherControllerKnowsThatTheScriptHasFailed) {
  Train();
  Raise(15);
  Conclude();
  const GenerationStart last = Only<action::Open>().start;
  machine_.reset();
  options_.start = last;
  options_.start.generation = 3;
  Train();
  Raise(15);
  Conclude();
  EXPECT_EQ(Only<action::Finish>().outcome.what, What::kFailed);
}

}  // namespace
}  // namespace thermocline
