// What a job leaves that is asked to end, or that a loss ends: its checkpoints and its result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "deploy/job/job_machine.h"
#include "deploy/job/testing/job_machine_fixture.h"

namespace thermocline {
namespace {

using Stage = JobMachine::Stage;
using What = GenerationOutcome::What;

// One server and one worker.
class JobMachineStopTest : public JobMachineTestBase {
 protected:
  JobMachineStopTest() : JobMachineTestBase(1, 1) {
    options_.job.mutable_checkpoint()->set_max_rollbacks(2);
  }

  void Train() {
    Open();
    Started("server 0");
    Take(event::Configured{Id("server 0"), absl::OkStatus()});
    Started("worker 0");
    EXPECT_EQ(machine().stage(), Stage::kTraining);
  }
  void EndWorker(int64_t steps) {
    Take(event::WorkerResult{Id("worker 0"), steps});
    End("worker 0", kDone);
  }
  // What the server answers that has applied a step, and where `shard` is set has written its
  // shard.
  CheckpointAnswers Answers(int64_t step, bool shard = false) {
    CheckpointReply reply;
    reply.set_complete_through(step);
    reply.set_accepted_through(step);
    if (shard) {
      CutStatus& cut = *reply.add_cuts();
      cut.set_step(step);
      cut.set_state(CutStatus::WRITTEN);
      cut.mutable_shard()->set_base_step(-1);
    }
    return {reply};
  }
  // A checkpoint of the step is written; its commit is under way.
  void WriteCheckpoint(int64_t step) {
    Wait(absl::Milliseconds(200));
    Take(event::CheckpointAnswered{generation(), Answers(step, true)});
  }
  void StopAll() {
    actions_.clear();
    Take(event::AllStopped{});
  }
  void SettleAndStop() {
    Wait(JobMachine::kSettle);
    StopAll();
  }
  GenerationOutcome Finished() { return Only<action::Finish>().outcome; }
};

TEST_F(JobMachineStopTest, TheFirstStopLeavesACheckpointOfWhatIsTrained) {
  for (const bool by_engine : {false, true}) {
    SCOPED_TRACE(by_engine);
    machine_.reset();
    Train();
    Take(event::Progressed{1, 6, 60});
    Take(event::UserStop{"SIG", by_engine});
    EXPECT_EQ(machine().stage(), Stage::kTraining);
    EXPECT_EQ(lines_.back(), by_engine ? "SIG: writing a checkpoint"
                                       : "SIG: writing a checkpoint; Ctrl-C again ends the job "
                                         "without it");
    Take(event::UserStop{"SIGTERM", /*by_engine=*/true});
    WriteCheckpoint(9);
    EXPECT_EQ(machine().stage(), Stage::kTraining);
    Take(event::Committed{1, absl::OkStatus(), false});
    EXPECT_EQ(machine().stage(), Stage::kStopping);
    StopAll();
    const GenerationOutcome outcome = Finished();
    EXPECT_EQ(outcome.status, absl::CancelledError("SIG"));
    EXPECT_EQ(outcome.what, by_engine ? What::kStoppedByEngine : What::kStoppedByUser);
  }
}

TEST_F(JobMachineStopTest, AStopTakesPlaceAtOnceWhereItIsRepeatedOrNothingIsToBeKept) {
  for (const auto& [trained, writes, at_once, repeats] :
       {std::tuple(true, true, false, true), std::tuple(true, true, true, false),
        std::tuple(true, false, false, false), std::tuple(false, true, false, false)}) {
    SCOPED_TRACE(absl::StrCat(trained, writes, at_once, repeats));
    machine_.reset();
    options_.job.mutable_checkpoint()->set_none(!writes);
    Train();
    if (trained) Take(event::Progressed{1, 6, 60});
    Take(event::UserStop{"SIG", false, at_once});
    if (repeats) {
      EXPECT_EQ(machine().stage(), Stage::kTraining);
      Take(event::UserStop{"again"});
    }
    EXPECT_EQ(machine().stage(), Stage::kStopping);
    StopAll();
    EXPECT_EQ(Finished().status, absl::CancelledError("SIG"));
  }
}

TEST_F(JobMachineStopTest, TheLastCheckpointIsNotWaitedForWhereNothingAdvances) {
  Train();
  Take(event::Progressed{1, 6, 60});
  Take(event::UserStop{"SIG"});
  for (int looks = 0; machine().stage() == Stage::kTraining; ++looks) {
    ASSERT_LT(looks, 30);
    Wait(absl::Seconds(1));
    event::StatusAnswered answered;
    answered.generation = generation();
    answered.servers.push_back({"at server 0", ServerStats()});
    Take(answered);
  }
  EXPECT_EQ(now_, absl::Seconds(20));
  SettleAndStop();
  EXPECT_EQ(Finished().status, absl::CancelledError("SIG"));
}

TEST_F(JobMachineStopTest, AStopLetsTheCheckpointOfTheLastStepBeWritten) {
  options_.job.mutable_checkpoint()->set_at_end(true);
  for (const bool repeats : {false, true}) {
    SCOPED_TRACE(repeats);
    machine_.reset();
    actions_.clear();
    now_ = absl::ZeroDuration();
    Train();
    EndWorker(40);
    Take(event::UserStop{"SIG"});
    EXPECT_EQ(machine().stage(), Stage::kFinishing);
    if (repeats) {
      Take(event::UserStop{"SIG"});
    } else {
      WriteCheckpoint(39);
      actions_.clear();
      Take(event::Committed{1, absl::OkStatus(), false});
      while (machine().stage() == Stage::kFinishing) {
        ASSERT_LT(now_, absl::Minutes(1));
        const auto calls = All<action::CallProcesses>();
        const bool removes = !All<action::Remove>().empty();
        actions_.clear();
        if (removes) {
          Take(event::Removed{1, ""});
        } else if (calls.empty()) {
          Wait(absl::Milliseconds(200));
        } else {
          Take(event::CheckpointAnswered{
              1, CheckpointAnswers(calls.back().calls.size(), Answers(39).front())});
        }
      }
    }
    EXPECT_EQ(machine().stage(), Stage::kWritingResult);
    const auto result = Only<action::WriteResult>();
    EXPECT_EQ(result.last_checkpoint, repeats ? absl::CancelledError("SIG") : absl::OkStatus());
    EXPECT_EQ(result.digest.status(), absl::CancelledError("SIG"));
  }
}

// What a job gets that says nothing of checkpoints.
TEST_F(JobMachineStopTest, WithoutRollbacksALossEndsTheJobAndKeepsTheResult) {
  options_.job.mutable_checkpoint()->set_at_end(true);
  options_.job.mutable_checkpoint()->set_max_rollbacks(0);
  options_.job.mutable_cluster()->set_durability(NONE);
  Train();
  End("worker 0", kKilled);
  SettleAndStop();
  EXPECT_EQ(Finished().status, absl::AbortedError("worker 0 was killed; log"));
  machine_.reset();
  Train();
  EndWorker(40);
  End("server 0", kKilled);
  Wait(JobMachine::kSettle);
  EXPECT_EQ(Only<action::WriteResult>().last_checkpoint,
            absl::AbortedError("server 0 was killed; log"));
}

}  // namespace
}  // namespace thermocline
