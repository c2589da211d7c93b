#include "deploy/job/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Stage = JobMachine::Stage;
using What = Outcome::What;

const ProcessEnd kKilled = {std::nullopt, "was killed by signal 9 (Killed)", "was killed; log"};
const ProcessEnd kDone = {0, "exited with code 0", ""};
const ProcessEnd kBadData = {1, "exited with code 1 (NaN)", "exited with code 1; log"};
const ProcessEnd kLostServer = {3, "exited with code 3", "exited with code 3; log"};

// Carries out the actions of the machine by hand, and keeps them.
class JobMachineTest : public testing::Test {
 protected:
  JobMachineTest() {
    Job& job = options_.job;
    job.set_name("job");
    job.mutable_train()->set_batch_size(10);
    Cluster& cluster = *job.mutable_cluster();
    cluster.set_servers(2);
    cluster.set_workers(2);
    cluster.set_durability(LOG_ASYNC);
    cluster.set_max_server_restarts(2);
    cluster.set_startup_timeout_s(30);
    cluster.set_stall_timeout_s(60);
    job.mutable_checkpoint()->set_directory("checkpoints");
    job.mutable_checkpoint()->set_every_steps(10);
    job.mutable_checkpoint()->set_keep(1);
    job.mutable_checkpoint()->set_at_end(false);
    job.mutable_checkpoint()->set_max_rollbacks(2);
    options_.manifest = EmptyManifest({1, Step(0)}, 2);
    options_.manifest.clear_shards();
    options_.server_logs = {"server-0.log", "server-1.log"};
    options_.worker_logs = {"worker-0.log", "worker-1.log"};
  }

  JobMachine& machine() {
    if (machine_ == nullptr) {
      machine_ = std::make_unique<JobMachine>(options_);
      Keep(machine_->Begin(now_));
    }
    return *machine_;
  }
  void Take(const JobEvent& event) { Keep(machine().Take(now_, event)); }
  void Keep(std::vector<JobAction> actions) {
    for (JobAction& action : actions) {
      if (const auto* tell = std::get_if<action::Tell>(&action)) lines_.push_back(tell->text);
      if (const auto* start = std::get_if<action::StartProcess>(&action)) {
        processes_[start->id.Name()] = start->id;
      }
      actions_.push_back(std::move(action));
    }
  }
  void Wait(absl::Duration time) {
    now_ += time;
    Take(event::Tick{});
  }
  // The actions of a kind since the last call for any kind.
  template <typename Action>
  std::vector<Action> All() {
    std::vector<Action> found;
    for (const JobAction& action : actions_) {
      if (const auto* each = std::get_if<Action>(&action)) found.push_back(*each);
    }
    return found;
  }
  template <typename Action>
  Action Only() {
    std::vector<Action> found = All<Action>();
    EXPECT_EQ(found.size(), 1u);
    actions_.clear();
    return found.empty() ? Action() : found.back();
  }
  ProcessId Id(const std::string& name) { return processes_.at(name); }
  uint64_t generation() { return machine().start().generation; }

  void Open() { Take(event::Opened{generation(), absl::OkStatus(), {}}); }
  void StartServers() {
    Open();
    for (const char* name : {"server 0", "server 1"}) {
      Take(event::ProcessStarted{Id(name), absl::StrCat("at ", name)});
    }
  }
  void StartWorkers() {
    StartServers();
    for (const char* name : {"server 0", "server 1"}) {
      Take(event::Configured{Id(name), absl::OkStatus()});
    }
  }
  void Train() {
    StartWorkers();
    for (const char* name : {"worker 0", "worker 1"}) {
      Take(event::ProcessStarted{Id(name), absl::StrCat("at ", name)});
    }
    EXPECT_EQ(machine().stage(), Stage::kTraining);
  }
  void End(const std::string& name, const ProcessEnd& end) {
    Take(event::ProcessEnded{Id(name), end});
  }
  void EndWorkers(int64_t steps) {
    for (const char* name : {"worker 0", "worker 1"}) {
      Take(event::WorkerResult{Id(name), steps});
      End(name, kDone);
    }
  }
  // All servers say how far they are.
  event::StatusAnswered Status(int64_t complete_through, uint64_t pushes) {
    event::StatusAnswered answered;
    answered.generation = generation();
    for (int i = 0; i < 2; ++i) {
      ServerStats stats;
      stats.set_complete_through(complete_through);
      stats.set_pushes_accepted(pushes);
      answered.servers.push_back({absl::StrCat("at server ", i), stats});
    }
    return answered;
  }
  // Answers of servers that have applied a step, and where `shard` is set have written their
  // shards.
  CheckpointAnswers Answers(int64_t complete_through, bool shard = false) {
    CheckpointReply reply;
    reply.set_complete_through(complete_through);
    reply.set_accepted_through(complete_through);
    if (shard) {
      CutStatus& cut = *reply.add_cuts();
      cut.set_step(complete_through);
      cut.set_state(CutStatus::WRITTEN);
      cut.mutable_shard()->set_base_step(-1);
    }
    return {reply, reply};
  }
  // A checkpoint of the step is written by all; its commit is under way.
  void WriteCheckpoint(int64_t step) {
    Wait(absl::Milliseconds(200));
    Take(event::CheckpointAnswered{generation(), Answers(step, true)});
  }
  // Servers answer for more than a minute, and nothing advances.
  void Stall() {
    for (int look = 0; look < 70; ++look) {
      Wait(absl::Seconds(1));
      Take(Status(5, 12));
      if (machine().stage() == Stage::kSettling) return;
    }
    ADD_FAILURE() << "no stall";
  }
  // 40 steps. The machine has the servers' stats and asks for the digest.
  void TrainToTheEnd() {
    Train();
    EndWorkers(40);
    Take(Status(39, 80));  // The look that was under way.
    Take(Status(39, 80));
  }
  void Settle() { Wait(JobMachine::kSettle); }
  // What ended is judged, and no process is left. Keeps the actions that follow only.
  void StopAll() {
    actions_.clear();
    Take(event::AllStopped{});
  }
  void SettleAndStop() {
    Settle();
    StopAll();
  }
  Outcome Finished() { return Only<action::Finish>().outcome; }

  JobMachineOptions options_;
  std::unique_ptr<JobMachine> machine_;
  absl::Duration now_;
  std::vector<JobAction> actions_;
  std::vector<std::string> lines_;
  std::map<std::string, ProcessId> processes_;
};

TEST_F(JobMachineTest, NothingIsDoneInAGenerationThatIsNotOnTheMedium) {
  EXPECT_EQ(machine().stage(), Stage::kOpening);
  EXPECT_EQ(Only<action::Open>().start.generation, 1u);
  Wait(absl::Hours(1));
  EXPECT_THAT(actions_, IsEmpty());
  Take(event::Opened{7, absl::OkStatus(), {}});  // Of another.
  EXPECT_EQ(machine().stage(), Stage::kOpening);
  Open();
  EXPECT_EQ(All<action::StartProcess>().size(), 2u);
}

TEST_F(JobMachineTest, AGenerationThatCanNotBeOpenedEndsTheJob) {
  Take(event::Opened{1, absl::UnavailableError("disk"), {}});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(outcome.status, absl::UnavailableError("disk"));
  EXPECT_FALSE(outcome.goes_back);
}

TEST_F(JobMachineTest, AJobThatGoesWell) {
  options_.job.clear_checkpoint();
  Train();
  actions_.clear();
  EndWorkers(40);
  EXPECT_EQ(machine().stage(), Stage::kAsking);
  EXPECT_EQ(All<action::ReportTrainingDone>().size(), 1u);
  Take(Status(39, 80));  // What was asked while it trained.
  Take(Status(39, 80));
  EXPECT_EQ(Only<action::AskDigest>().last, Step(39));
  Take(event::DigestReady{1, Digest{3, 4}});
  EXPECT_EQ(Only<action::WriteResult>().digest->low, 3u);
  Take(event::ResultWritten{});
  EXPECT_EQ(Only<action::StopProcesses>().grace, absl::Seconds(5));
  Take(event::AllStopped{});
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kTrained);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_EQ(machine().stage(), Stage::kEnded);
  EXPECT_EQ(machine().next_tick(), absl::InfiniteDuration());
}

TEST_F(JobMachineTest, AProcessThatDoesNotComeUpIsNamed) {
  Open();
  Take(event::ProcessStarted{Id("server 0"), "at server 0"});
  actions_.clear();
  Wait(absl::Seconds(30));
  Take(event::AllStopped{});
  EXPECT_EQ(All<action::Finish>().at(0).outcome.status,
            absl::DeadlineExceededError("server 1 did not come up within 30s "
                                        "(cluster.startup_timeout_s); its log: server-1.log"));
}

TEST_F(JobMachineTest, AServerThatRefusesItsConfigurationEndsTheJob) {
  StartServers();
  Take(event::Configured{Id("server 1"), absl::DataLossError("damaged")});
  SettleAndStop();
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.status, absl::DataLossError("damaged"));
  EXPECT_FALSE(outcome.goes_back);
}

// Restarts of servers
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, AServerIsStartedAgainWhereItWas) {
  Train();
  actions_.clear();
  const ProcessId first = Id("server 1");
  End("server 1", kKilled);
  const action::StartProcess start = All<action::StartProcess>().at(0);
  EXPECT_EQ(start.id.incarnation, 2u);
  EXPECT_EQ(start.address, "at server 1");
  EXPECT_THAT(lines_, ElementsAre("server 1 was killed by signal 9 (Killed); started again"));
  actions_.clear();
  Take(event::ProcessStarted{first, "stale"});  // Of the process before: void.
  Take(event::ProcessEnded{first, kKilled});
  EXPECT_THAT(All<action::Configure>(), IsEmpty());
  Take(event::ProcessStarted{start.id, "at server 1"});
  EXPECT_EQ(Only<action::Configure>().id.incarnation, 2u);
  Take(event::Configured{start.id, absl::UnavailableError("it recovers")});
  EXPECT_THAT(All<action::Configure>(), IsEmpty());
  Wait(absl::Milliseconds(20));
  EXPECT_EQ(All<action::Configure>().size(), 1u);
  EXPECT_EQ(machine().stage(), Stage::kTraining);
}

TEST_F(JobMachineTest, BeyondTheBudgetTheJobGoesBack) {
  Train();
  for (int i = 0; i < 3; ++i) {
    Take(event::ProcessStarted{Id("server 0"), "at server 0"});
    End("server 0", kKilled);
    Wait(absl::Seconds(5));
  }
  EXPECT_EQ(Id("server 0").incarnation, 3u);
  EXPECT_THAT(lines_, ::testing::Contains("server 0 was killed by signal 9 (Killed); not started "
                                          "again: cluster.max_server_restarts is 2"));
  EXPECT_EQ(All<action::ReportLimit>().at(0).limit, 2u);
  StopAll();
  EXPECT_EQ(Only<action::Open>().start.generation, 2u);
}

TEST_F(JobMachineTest, RestartsCountAnewOnceTheJobGotFurther) {
  Train();
  for (int i = 0; i < 5; ++i) {
    Take(event::ProcessStarted{Id("server 0"), "at server 0"});
    Take(event::Progressed{1, 10 * (i + 1), 100});
    End("server 0", kKilled);
    EXPECT_EQ(Id("server 0").incarnation, i + 2u);
  }
  EXPECT_EQ(machine().reached(), Step(49));
}

TEST_F(JobMachineTest, WithoutALogAServerIsNotStartedAgain) {
  options_.job.mutable_cluster()->set_durability(NONE);
  Train();
  End("server 0", kKilled);
  EXPECT_EQ(machine().stage(), Stage::kSettling);
}

TEST_F(JobMachineTest, WhyAServerCanNotBeStartedAgainIsSaid) {
  Train();
  End("server 0", kKilled);
  Take(event::NotStarted{Id("server 0"), absl::NotFoundError("no such program")});
  EXPECT_THAT(lines_, ::testing::Contains("server 0 can't be started again: no such program"));
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.generation, 2u);
  EXPECT_THAT(lines_.back(), HasSubstr("can't be started again: no such program; going back to"));
}

// The process that comes would remove its shard.
TEST_F(JobMachineTest, NoServerStartsWhileAManifestIsWritten) {
  Train();
  WriteCheckpoint(9);
  EXPECT_EQ(All<action::Commit>().size(), 1u);
  actions_.clear();
  End("server 0", kKilled);
  Wait(absl::Seconds(1));
  EXPECT_THAT(All<action::StartProcess>(), IsEmpty());
  Take(event::Committed{1, absl::OkStatus(), false});
  EXPECT_EQ(All<action::StartProcess>().size(), 1u);
  Take(event::ProcessStarted{Id("server 0"), "at server 0"});
  EXPECT_EQ(All<action::Configure>().at(0).base, "step-000000009");
}

// Judgements
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, WhatTheJobCausedBeatsALoss) {
  Train();
  End("worker 1", kLostServer);  // It lost the one that found bad data.
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  now_ += absl::Milliseconds(100);
  End("worker 0", kBadData);
  SettleAndStop();
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(outcome.status, absl::AbortedError("worker 0 exited with code 1; log\n"
                                               "worker 1 exited with code 3; log"));
}

TEST_F(JobMachineTest, ALossTakesTheJobBackToTheNewestCheckpoint) {
  Train();
  WriteCheckpoint(9);
  Take(event::Committed{1, absl::OkStatus(), false});
  End("worker 1", kKilled);
  Settle();
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  const GenerationStart next = Only<action::Open>().start;
  EXPECT_EQ(next.generation, 2u);
  EXPECT_EQ(next.base, "step-000000009");
  EXPECT_EQ(next.base_generation, 1u);
  EXPECT_EQ(next.first_step(), Step(10));
  EXPECT_EQ(next.base_samples, 100u);
  EXPECT_EQ(lines_.back(),
            "worker 1 was killed by signal 9 (Killed); going back to step 10 (generation 2)");
}

TEST_F(JobMachineTest, TheNextGenerationWaitsForAManifestThatIsBeingWritten) {
  Train();
  WriteCheckpoint(9);
  End("worker 1", kKilled);
  SettleAndStop();
  EXPECT_THAT(All<action::Open>(), IsEmpty());
  Take(event::Committed{1, absl::OkStatus(), false});
  EXPECT_EQ(Only<action::Open>().start.base, "step-000000009");
}

TEST_F(JobMachineTest, WhereAManifestIsInDoubtNoGenerationFollows) {
  Train();
  WriteCheckpoint(9);
  End("worker 1", kKilled);
  Settle();
  Take(event::AllStopped{});
  actions_.clear();
  Take(event::Committed{1, absl::UnavailableError("disk"), /*may_exist=*/true});
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kUncertain);
  EXPECT_EQ(outcome.status, absl::UnavailableError("disk"));
}

TEST_F(JobMachineTest, WhereAnotherControllerHasBegunTheJobEnds) {
  Train();
  WriteCheckpoint(9);
  actions_.clear();
  Take(event::Committed{1, absl::AbortedError("generation 2 has begun"), false});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(outcome.status, absl::AbortedError("generation 2 has begun"));
}

TEST_F(JobMachineTest, WithoutCheckpointsALossEndsTheJob) {
  options_.job.clear_checkpoint();
  Train();
  End("worker 0", kKilled);
  SettleAndStop();
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kLost);
  EXPECT_EQ(outcome.status, absl::AbortedError("worker 0 was killed; log"));
}

TEST_F(JobMachineTest, RollbacksAreLimited) {
  for (int i = 0; i < 3; ++i) {
    Train();
    End("worker 0", kKilled);
    SettleAndStop();
  }
  EXPECT_EQ(Finished().what, What::kLost);
  EXPECT_EQ(lines_.back(),
            "worker 0 was killed by signal 9 (Killed); not going back: "
            "checkpoint.max_rollbacks is 2");
}

TEST_F(JobMachineTest, ALogThatLostWhatItHadAcknowledgedTakesTheJobBack) {
  Train();
  End("server 0", kKilled);
  Take(event::ProcessStarted{Id("server 0"), "at server 0"});
  Take(event::Configured{Id("server 0"), absl::DataLossError("its log is damaged")});
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.generation, 2u);
  EXPECT_THAT(lines_.back(), HasSubstr("server 0 can't recover: its log is damaged; going back"));
}

TEST_F(JobMachineTest, AStallTakesTheJobBackOnce) {
  for (int i = 0; i < 2; ++i) {
    Train();
    Stall();
    SettleAndStop();
  }
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kStalled);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("the job has gone back for a stall before, and got no further since"));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("worker-0.log"));
}

TEST_F(JobMachineTest, EndsAreJudgedBeforeAStall) {
  Train();
  Stall();
  End("worker 1", kKilled);
  SettleAndStop();
  EXPECT_EQ(lines_.back(),
            "worker 1 was killed by signal 9 (Killed); going back to the beginning (generation 2)");
}

// The user's stop
// ------------------------------------------------------------------------------------------------

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
    const Outcome outcome = Finished();
    EXPECT_EQ(outcome.what, What::kStoppedByUser);
    EXPECT_EQ(outcome.status, absl::CancelledError("stopped by signal 2 (Interrupt)"));
  }
}

TEST_F(JobMachineTest, AStopWhileTheDigestIsAskedForKeepsTheResult) {
  options_.job.clear_checkpoint();
  Train();
  EndWorkers(40);
  Take(event::UserStop{"stopped by signal 2 (Interrupt)"});
  EXPECT_EQ(All<action::WriteResult>().size(), 1u);
  Take(event::ResultWritten{});
  StopAll();
  EXPECT_EQ(Finished().status,
            absl::CancelledError("the model is trained, but summary.json lacks its digest: stopped "
                                 "by signal 2 (Interrupt)"));
}

// The end
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, AServerThatDiesWhileItIsAskedIsAskedAgain) {
  options_.job.clear_checkpoint();
  TrainToTheEnd();
  Take(event::DigestReady{1, absl::UnavailableError("connection lost")});
  EXPECT_EQ(machine().stage(), Stage::kAsking);
  End("server 1", kKilled);
  Take(event::ProcessStarted{Id("server 1"), "at server 1"});
  actions_.clear();
  Take(event::Configured{Id("server 1"), absl::OkStatus()});
  Take(Status(39, 80));
  Take(Status(39, 80));
  EXPECT_EQ(All<action::AskDigest>().size(), 1u);
}

TEST_F(JobMachineTest, WithoutADigestTheResultIsKeptAndTheJobFails) {
  options_.job.clear_checkpoint();
  TrainToTheEnd();
  Take(event::DigestReady{1, absl::UnavailableError("connection lost")});
  EXPECT_THAT(All<action::WriteResult>(), IsEmpty());
  Wait(absl::Seconds(1));  // No server has died meanwhile.
  EXPECT_EQ(All<action::WriteResult>().size(), 1u);
  Take(event::ResultWritten{});
  StopAll();
  EXPECT_EQ(Finished().status,
            absl::UnavailableError("the model is trained, but summary.json lacks its digest: "
                                   "connection lost"));
}

TEST_F(JobMachineTest, AWorkerWithoutAResultEndsTheJob) {
  Train();
  Take(event::WorkerResult{Id("worker 0"), absl::DataLossError("worker-0.json holds nothing")});
  End("worker 0", kDone);
  Take(event::WorkerResult{Id("worker 1"), 40});
  End("worker 1", kDone);
  StopAll();
  EXPECT_EQ(Finished().status, absl::DataLossError("worker-0.json holds nothing"));
}

TEST_F(JobMachineTest, RequestsForCheckpointsOutliveAGeneration) {
  Take(event::CheckpointRequested{"a"});
  Train();
  End("worker 0", kKilled);
  Settle();
  Take(event::AllStopped{});
  Train();
  WriteCheckpoint(9);
  Take(event::Committed{2, absl::OkStatus(), false});
  const action::AnswerRequest answer = All<action::AnswerRequest>().at(0);
  EXPECT_EQ(answer.answer.id, "a");
  EXPECT_EQ(*answer.answer.name, "step-000000009");
}

}  // namespace
}  // namespace thermocline
