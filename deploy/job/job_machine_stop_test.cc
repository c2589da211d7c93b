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

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::StartsWith;
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
  // Answers what was asked about checkpoints; where nothing was, lets a round's time pass.
  void GoOn(int64_t step) {
    const auto calls = All<action::CallProcesses>();
    const bool removes = !All<action::Remove>().empty();
    actions_.clear();
    if (removes) {
      Take(event::Removed{1, ""});
    } else if (calls.empty()) {
      Wait(absl::Milliseconds(200));
    } else {
      const size_t count = calls.back().calls.size();
      Take(event::CheckpointAnswered{1, CheckpointAnswers(count, Answers(step).front())});
    }
  }
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
  EXPECT_THAT(lines_, Contains(AllOf(StartsWith("nothing has advanced for 3s: worker 0"),
                                     EndsWith("; if that stays so, the job ends without the "
                                              "checkpoint in 17s"))));
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
        GoOn(39);
      }
    }
    EXPECT_EQ(machine().stage(), Stage::kWritingResult);
    const auto result = Only<action::WriteResult>();
    EXPECT_EQ(result.last_checkpoint, repeats ? absl::CancelledError("SIG") : absl::OkStatus());
    EXPECT_EQ(result.digest.status(), absl::CancelledError("SIG"));
  }
}

TEST_F(JobMachineStopTest, TheLastStepHasItsCheckpointBeforeTheScriptHasEnded) {
  options_.job.mutable_checkpoint()->set_at_end(true);
  for (const bool is_stopped : {false, true}) {
    SCOPED_TRACE(is_stopped);
    machine_.reset();
    actions_.clear();
    now_ = absl::ZeroDuration();
    Train();
    Take(event::Progressed{1, 40, 400});
    Take(event::Trained{1, Step(39)});
    WriteCheckpoint(39);
    EXPECT_EQ(Only<action::Commit>().checkpoint.name, "step-000000039");
    Take(event::Committed{1, absl::OkStatus(), false});
    for (int i = 0; i < 20; ++i) GoOn(39);
    EXPECT_EQ(machine().stage(), Stage::kTraining);
    Take(event::CheckpointRequested{"a"});
    EXPECT_EQ(*Only<action::AnswerRequest>().answer.name, "step-000000039");
    if (is_stopped) {
      Take(event::UserStop{"SIG"});
      EXPECT_EQ(machine().stage(), Stage::kStopping);
      StopAll();
      EXPECT_EQ(Finished().what, What::kStoppedByUser);
    } else {
      EndWorker(40);
      EXPECT_EQ(machine().stage(), Stage::kAsking);
      EXPECT_TRUE(All<action::Commit>().empty());
    }
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
  Settle();
  EXPECT_EQ(Only<action::WriteResult>().last_checkpoint,
            absl::AbortedError("server 0 was killed; log"));
}

TEST_F(JobMachineTest, TheUsersStopEndsTheJobInEveryStage) {
  for (const Stage stage : {Stage::kOpening, Stage::kStartingServers, Stage::kStartingWorkers,
                            Stage::kTraining, Stage::kSettling, Stage::kStopping}) {
    SCOPED_TRACE(static_cast<int>(stage));
    machine_.reset();
    actions_.clear();
    now_ = absl::ZeroDuration();
    if (stage >= Stage::kTraining) {
      Train();
    } else if (stage == Stage::kStartingWorkers) {
      StartWorkers();
    } else if (stage == Stage::kStartingServers) {
      Open();
    }
    if (stage >= Stage::kSettling) End("worker 0", kKilled);
    if (stage == Stage::kStopping) Settle();
    ASSERT_EQ(machine().stage(), stage);
    Take(event::UserStop{"stopped by signal 2 (Interrupt)"});
    SettleAndStop();
    const GenerationOutcome outcome = Finished();
    EXPECT_EQ(outcome.what, What::kStoppedByUser);
    EXPECT_EQ(outcome.status, absl::CancelledError("stopped by signal 2 (Interrupt)"));
  }
}

TEST_F(JobMachineTest, AnEnginesStopIsNotTheUsers) {
  Train();
  Take(event::UserStop{"stopped by signal 15 (Terminated)", /*by_engine=*/true});
  StopAll();
  const GenerationOutcome stopped = Finished();
  EXPECT_EQ(stopped.what, What::kStoppedByEngine);
  EXPECT_EQ(stopped.status, absl::CancelledError("stopped by signal 15 (Terminated)"));
  EXPECT_EQ(RecordOf(stopped).what(), JobOutcome::LOST);
}

TEST_F(JobMachineTest, TheUsersStopWinsOverAnEngines) {
  for (const bool user_first : {false, true}) {
    SCOPED_TRACE(user_first);
    machine_.reset();
    actions_.clear();
    Train();
    for (const bool by_engine : {user_first, !user_first}) {
      Take(event::UserStop{by_engine ? "SIGTERM" : "thermocline stop", by_engine});
    }
    StopAll();
    const GenerationOutcome outcome = Finished();
    EXPECT_EQ(outcome.status, absl::CancelledError("thermocline stop"));
    EXPECT_EQ(RecordOf(outcome).what(), JobOutcome::STOPPED);
  }
}

}  // namespace
}  // namespace thermocline
