#include "deploy/job/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data_place.h"
#include "deploy/job/testing/job_machine_fixture.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Stage = JobMachine::Stage;
using What = GenerationOutcome::What;

TEST_F(JobMachineTest, NothingIsDoneInAGenerationThatIsNotOnTheMedium) {
  EXPECT_EQ(machine().stage(), Stage::kOpening);
  EXPECT_EQ(Only<action::Open>().start.generation, 1u);
  Wait(absl::Hours(1));
  EXPECT_THAT(actions_, IsEmpty());
  Take(event::Opened{7, absl::OkStatus(), {}});  // Another generation's.
  EXPECT_EQ(machine().stage(), Stage::kOpening);
  Open();
  EXPECT_EQ(All<action::StartProcess>().size(), 2u);
}

TEST_F(JobMachineTest, AGenerationThatCanNotBeOpenedEndsTheJob) {
  Take(event::Opened{1, absl::UnavailableError("disk"), {}});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  const GenerationOutcome outcome = Finished();
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
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kTrained);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_EQ(machine().stage(), Stage::kEnded);
  EXPECT_EQ(machine().next_tick(), absl::InfiniteDuration());
}

TEST_F(JobMachineTest, AProcessThatDoesNotComeUpIsNamed) {
  Open();
  Take(event::ProcessStarted{Id("server 0"), "at server 0"});
  Wait(absl::Seconds(30));
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.generation, 2u);
  EXPECT_EQ(lines_.back(),
            "server 1 did not come up within 30s (cluster.startup_timeout_s); its log: "
            "server-1.log; going back to the beginning (generation 2)");
  for (int i = 0; i < 2; ++i) {  // The limit of losses.
    StartWorkers();
    Wait(absl::Seconds(30));
    SettleAndStop();
  }
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kLost);
  EXPECT_EQ(outcome.status,
            absl::DeadlineExceededError("worker 0 did not come up within 30s "
                                        "(cluster.startup_timeout_s); its log: worker-0.log"));
}

TEST_F(JobMachineTest, ForWantOfProcessesTheJobGoesBackAndForWantOfAProgramItEnds) {
  StartWorkers();
  Take(event::NotStarted{Id("worker 1"), absl::UnavailableError("no process: try again")});
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.generation, 2u);
  EXPECT_EQ(lines_.back(),
            "worker 1 can't be started: no process: try again; going back to the beginning "
            "(generation 2)");
  Open();
  Take(event::NotStarted{Id("server 1"), absl::NotFoundError("no such program")});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  EXPECT_EQ(Finished().status, absl::NotFoundError("no such program"));
}

// What ends it may be seen later.
TEST_F(JobMachineTest, AServerThatIsLostBeforeItIsConfiguredTakesTheJobBack) {
  for (const bool its_end_is_seen : {true, false}) {
    StartServers();
    Take(event::Configured{Id("server 1"), absl::UnavailableError("Configure at x: refused")});
    EXPECT_EQ(machine().stage(), Stage::kSettling);
    if (its_end_is_seen) End("server 1", kKilled);
    SettleAndStop();
    EXPECT_EQ(lines_.back(),
              absl::StrCat(its_end_is_seen ? "server 1 was killed by signal 9 (Killed)"
                                           : "Configure at x: refused",
                           "; going back to the beginning (generation ", generation(), ")"));
  }
  EXPECT_EQ(generation(), 3u);
}

// Data that can't be read for now, say; who lost this worker comes last.
TEST_F(JobMachineTest, TroubleOfAWorkerIsALoss) {
  Train();
  End("worker 0", kLostServer);
  End("worker 1", {4, "exited with code 4 (a.csv: Input/output error)", "exited"});
  SettleAndStop();
  EXPECT_EQ(lines_.back(),
            "worker 1 exited with code 4 (a.csv: Input/output error), worker 0 exited with code 3; "
            "going back to the beginning (generation 2)");
}

TEST_F(JobMachineTest, AServerThatRefusesItsConfigurationEndsTheJob) {
  StartServers();
  Take(event::Configured{Id("server 1"), absl::DataLossError("damaged")});
  SettleAndStop();
  const GenerationOutcome outcome = Finished();
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
  Take(event::ProcessStarted{first, "stale"});  // Events of the process before don't count.
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

// Introductions
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, EachWorkerIsToldWhereAllAreUntilItAnswers) {
  options_.introduces_workers = true;
  StartWorkers();
  Started("worker 1");
  EXPECT_THAT(All<action::Introduce>(), IsEmpty());
  Started("worker 0");
  const action::Introduce first = Only<action::Introduce>();
  EXPECT_EQ(first.generation, 1u);
  EXPECT_THAT(first.ranks, ElementsAre(0, 1));
  EXPECT_THAT(first.addresses, ElementsAre("at worker 0", "at worker 1"));
  Wait(absl::Seconds(10));
  EXPECT_THAT(All<action::Introduce>(), IsEmpty());                  // It is under way.
  Take(event::Introduced{7, {absl::OkStatus(), absl::OkStatus()}});  // Another generation's.
  Take(event::Introduced{1, {absl::DeadlineExceededError("slow"), absl::OkStatus()}});
  EXPECT_LE(machine().next_tick(), now_ + absl::Milliseconds(100));
  Wait(absl::Milliseconds(100));
  EXPECT_THAT(Only<action::Introduce>().ranks, ElementsAre(0));
  Take(event::Introduced{1, {absl::UnavailableError("not there")}});
  Wait(absl::Milliseconds(100));
  EXPECT_THAT(Only<action::Introduce>().ranks, ElementsAre(0));
  Take(event::Introduced{1, {absl::OkStatus()}});
  Wait(absl::Hours(1));
  EXPECT_THAT(All<action::Introduce>(), IsEmpty());
  EXPECT_EQ(machine().stage(), Stage::kTraining);
}

TEST_F(JobMachineTest, AWorkerThatHasEndedIsToldNothing) {
  options_.introduces_workers = true;
  Train();
  actions_.clear();
  Take(event::WorkerResult{Id("worker 0"), 40});
  End("worker 0", kDone);
  Take(event::Introduced{1, {absl::UnavailableError("gone"), absl::UnavailableError("slow")}});
  Wait(absl::Milliseconds(100));
  EXPECT_THAT(Only<action::Introduce>().ranks, ElementsAre(1));
}

TEST_F(JobMachineTest, AJobWhoseWorkersExchangeNothingIntroducesNone) {
  Train();
  EXPECT_THAT(All<action::Introduce>(), IsEmpty());
}

TEST_F(JobMachineTest, ARefusedIntroductionIsJudgedBehindTheEndsOfProcesses) {
  options_.introduces_workers = true;
  for (const bool dies : {true, false}) {
    Train();
    Take(event::Introduced{generation(),
                           {absl::OkStatus(), absl::FailedPreconditionError("another job")}});
    EXPECT_EQ(machine().stage(), Stage::kSettling);
    if (dies) End("worker 0", kKilled);
    SettleAndStop();
    if (!dies) break;
    EXPECT_EQ(Only<action::Open>().start.generation, 2u);
    EXPECT_EQ(lines_.back(),
              "worker 0 was killed by signal 9 (Killed); going back to the beginning "
              "(generation 2)");
  }
  EXPECT_EQ(Finished().status,
            absl::FailedPreconditionError("worker 1 does not take the other workers: another job"));
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
  const GenerationOutcome outcome = Finished();
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

// One process is the server and the worker of a job without servers: it ends once, and begins with
// its place in the data.
TEST_F(JobMachineTest, TheLossOfAWorkerWithAnEmbeddedServerTakesTheJobBack) {
  Cluster& cluster = *options_.job.mutable_cluster();
  cluster.set_servers(0);
  cluster.set_workers(1);
  cluster.set_durability(NONE);
  options_.manifest.set_num_servers(1);
  const auto train = [&] {
    Open();
    EXPECT_EQ(starts_.count("server 1"), 0u);
    Started("server 0");
    Take(event::Configured{Id("server 0"), absl::OkStatus()});
    Started("worker 0");
    EXPECT_EQ(machine().stage(), Stage::kTraining);
  };
  train();
  EXPECT_EQ(starts_.at("server 0").first_step, Step(0));
  WriteCheckpoint(9);
  Take(event::Committed{1, absl::OkStatus(), false});
  End("worker 0", kKilled);
  End("server 0", kKilled);
  SettleAndStop();
  EXPECT_EQ(lines_.back(),
            "worker 0 was killed by signal 9 (Killed); going back to step 10 (generation 2)");
  train();
  EXPECT_EQ(starts_.at("server 0").first_step, Step(10));
  EXPECT_EQ(starts_.at("worker 0").first_step, Step(10));
}

// Where worker 0 reports that the data go on reaches all workers, and the checkpoints of later
// steps; workers that begin with one of these get it back.
TEST_F(JobMachineTest, WhereTheDataGoOnIsToldToAllWorkersAndKept) {
  options_.job.mutable_fae();
  Train();
  EXPECT_EQ(starts_.at("worker 0").data_place, "");
  Take(event::Evaluated{1, {}});  // After the last step; job.evaluate is absent.
  EXPECT_THAT(All<action::Decide>(), IsEmpty());
  EvaluationReport change;
  change.step = Step(4);
  change.is_evaluation = false;
  ScheduleState next;
  next.set_first_step(5);
  change.data_place = MakeDataPlace(next);
  Take(event::Evaluated{1, change});
  const action::Decide decide = All<action::Decide>().at(0);
  EXPECT_EQ(decide.step, Step(4));
  EXPECT_FALSE(decide.stop);
  EXPECT_EQ(decide.data_place, change.data_place);
  Take(event::Decided{1, {true, true}});
  actions_.clear();
  WriteCheckpoint(9);
  const CheckpointManifest manifest = All<action::Commit>().at(0).checkpoint.manifest;
  EXPECT_EQ(manifest.evaluations().data_place(), change.data_place);
  Take(event::Committed{1, absl::OkStatus(), false});
  End("worker 1", kKilled);
  SettleAndStop();
  Take(event::Opened{2, absl::OkStatus(), manifest});
  for (const char* name : {"server 0", "server 1"}) Started(name);
  for (const char* name : {"server 0", "server 1"}) {
    Take(event::Configured{Id(name), absl::OkStatus()});
  }
  for (const char* name : {"worker 0", "worker 1"}) {
    EXPECT_EQ(starts_.at(name).data_place, change.data_place) << name;
  }
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
  const GenerationOutcome outcome = Finished();
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
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(outcome.status, absl::AbortedError("generation 2 has begun"));
}

TEST_F(JobMachineTest, WithoutCheckpointsALossEndsTheJob) {
  options_.job.clear_checkpoint();
  Train();
  End("worker 0", kKilled);
  SettleAndStop();
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kLost);
  EXPECT_EQ(outcome.status, absl::AbortedError("worker 0 was killed; log"));
}

// Another controller of the job begins with what its predecessor's last generation had spent.
TEST_F(JobMachineTest, LimitsHoldOverControllersThatAnEngineStarts) {
  machine();
  EXPECT_EQ(Only<action::Open>().start.spent.rollbacks().times(), 0u);
  Train();
  Take(event::Progressed{1, 7, 70});
  End("worker 0", kKilled);
  SettleAndStop();
  Train();
  End("server 0", kKilled);
  Take(event::ProcessStarted{Id("server 0"), "at server 0"});
  End("worker 0", kKilled);
  SettleAndStop();
  const GenerationStart last = Only<action::Open>().start;
  EXPECT_EQ(last.spent.rollbacks().times(), 2u);
  EXPECT_EQ(last.spent.rollbacks().steps(), 7u);
  EXPECT_EQ(last.spent.restarts().times(), 1u);

  const auto begin_with = [&](const SpentBudgets& spent) {
    machine_.reset();
    options_.start = last;
    options_.start.generation = 4;
    options_.start.spent = spent;
    Train();
    actions_.clear();
  };
  begin_with(last.spent);
  End("worker 0", kKilled);
  SettleAndStop();
  EXPECT_FALSE(Finished().goes_back);
  begin_with(last.spent);
  Take(event::Progressed{4, 8, 80});  // Further than any before.
  End("worker 0", kKilled);
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.spent.rollbacks().times(), 1u);
  begin_with(SpentBudgets());  // By its user.
  End("worker 0", kKilled);
  SettleAndStop();
  EXPECT_EQ(Only<action::Open>().start.spent.rollbacks().times(), 1u);
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

// It would be killed at the same place again and again, as long as there are rollbacks.
TEST_F(JobMachineTest, ASecondLossForWantOfMemoryWithoutANewCheckpointEndsTheJob) {
  options_.job.mutable_checkpoint()->set_max_rollbacks(20);
  ProcessEnd starved = kKilled;
  starved.lacked_memory = true;
  const auto lose = [&](const ProcessEnd& end) {
    End("worker 0", end);
    SettleAndStop();
  };
  Train();
  lose(starved);
  EXPECT_EQ(generation(), 2u);
  Train();
  lose(kKilled);  // For another reason.
  EXPECT_EQ(generation(), 3u);
  Train();
  WriteCheckpoint(9);
  Take(event::Committed{generation(), absl::OkStatus(), false});
  lose(starved);
  EXPECT_EQ(generation(), 4u) << "there is a new checkpoint";
  EXPECT_THAT(lines_.back(), HasSubstr("going back to step 10"));
  Train();
  lose(starved);
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, What::kFailed);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kAborted);
  for (const char* named :
       {"twice", "thermocline plan", "train.eval_batch_size", "train.batch_size"}) {
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(named));
  }
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
  const GenerationOutcome outcome = Finished();
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

// What the others waited for says where the worker was; who merely lost it comes last.
TEST_F(JobMachineTest, TheLossOfAWorkerNamesTheStepAndPhaseThatTheOthersMiss) {
  options_.introduces_workers = true;
  Train();
  Take(Status(5, 12));
  actions_.clear();
  End("worker 0", kLostServer);
  now_ += absl::Milliseconds(50);
  End("worker 1", kKilled);
  EXPECT_THAT(All<action::AskStatus>(), IsEmpty());
  EXPECT_LE(machine().next_tick(), now_ + absl::Milliseconds(100));
  Wait(absl::Milliseconds(100));
  EXPECT_EQ(All<action::AskStatus>().size(), 1u);
  event::StatusAnswered answered = Status(5, 12);
  WorkerStats stats;
  WorkerWait& wait = *stats.add_waits();
  wait.set_worker(1);
  wait.set_kind(WorkerWait::GRADIENTS);
  wait.set_step(6);
  wait.set_needed_step(6);
  answered.workers.push_back({"at worker 0", stats});
  Take(answered);
  SettleAndStop();
  EXPECT_EQ(
      lines_.back(),
      "worker 1 was killed by signal 9 (Killed), worker 0 exited with code 3; worker 0 waited "
      "for the gradients of step 6 from worker 1; going back to the beginning (generation "
      "2)");
}

// What the servers write at a failure
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, AFailureComesAfterTheCommitOfWhatIsWritten) {
  Train();
  Take(event::CheckpointAnswered{generation(), Answers(8)});
  actions_.clear();
  End("worker 0", kBadData);
  EXPECT_EQ(All<action::CallProcesses>().size(), 1u);
  // One of the two servers still writes.
  CheckpointAnswers answers = Answers(9, /*shard=*/true);
  answers[1]->mutable_cuts(0)->set_state(CutStatus::WRITING);
  Take(event::CheckpointAnswered{generation(), answers});
  Wait(absl::Seconds(1));
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  actions_.clear();
  Take(event::CheckpointAnswered{generation(), Answers(9, /*shard=*/true)});
  EXPECT_EQ(Only<action::Commit>().checkpoint.name, "step-000000009");
  Take(event::Committed{generation(), absl::OkStatus()});
  EXPECT_EQ(All<action::ReportCheckpoint>().size(), 1u);
  EXPECT_EQ(Only<action::CallProcesses>().calls.size(), 2u);  // The servers learn of it.
  Take(event::CheckpointAnswered{generation(), Answers(9)});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  StopAll();
  EXPECT_EQ(Finished().what, What::kFailed);
}

TEST_F(JobMachineTest, NoFailureWaitsForACheckpointThatAServerHasNotBegun) {
  Train();
  Take(event::CheckpointAnswered{generation(), Answers(8)});
  End("worker 0", kKilled);
  Wait(absl::Milliseconds(200));
  CheckpointAnswers answers = Answers(9, /*shard=*/true);
  answers[1] = Answers(8)[1];
  Take(event::CheckpointAnswered{generation(), answers});
  Wait(JobMachine::kSettle);
  EXPECT_EQ(machine().stage(), Stage::kStopping);
}

TEST_F(JobMachineTest, AServerThatEndedWritesNothingAnyMore) {
  options_.job.mutable_cluster()->set_durability(NONE);
  Train();
  Take(event::CheckpointAnswered{generation(), Answers(8)});
  End("server 1", kKilled);
  actions_.clear();
  Wait(JobMachine::kSettle);
  EXPECT_THAT(All<action::CallProcesses>(), IsEmpty());
  EXPECT_EQ(machine().stage(), Stage::kStopping);
}

TEST_F(JobMachineTest, AWriteThatDoesNotEndIsNotWaitedForLong) {
  Train();
  Take(event::CheckpointAnswered{generation(), Answers(8)});
  End("worker 0", kKilled);
  CheckpointAnswers answers = Answers(9, /*shard=*/true);
  answers[1]->mutable_cuts(0)->set_state(CutStatus::WRITING);
  for (int round = 0; machine().stage() == Stage::kSettling; ++round) {
    ASSERT_LT(round, 100);
    Wait(absl::Milliseconds(200));
    Take(event::CheckpointAnswered{generation(), answers});
  }
  EXPECT_GE(now_, JobMachine::kWritePatience);
  EXPECT_LE(now_, JobMachine::kWritePatience + absl::Seconds(1));
}

// The user's stop
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineTest, OverHostsAnEnginesStopWaitsForACheckpoint) {
  options_.num_hosts = 1;
  for (const bool user_too : {false, true}) {
    SCOPED_TRACE(user_too);
    machine_.reset();
    Host host;
    host.name = "h1";
    host.nonce = 1;
    Take(event::HostUp{host});
    Train();
    Take(event::UserStop{"SIGTERM", /*by_engine=*/true});
    EXPECT_EQ(machine().stage(), Stage::kTraining);
    if (user_too) {
      Take(event::UserStop{"thermocline stop"});
    } else {
      WriteCheckpoint(9);
      EXPECT_EQ(machine().stage(), Stage::kTraining);
      actions_.clear();
      Take(event::Committed{1, absl::OkStatus(), false});
      EXPECT_THAT(All<action::AnswerRequest>(), IsEmpty());
    }
    EXPECT_EQ(machine().stage(), Stage::kStopping);
    StopAll();
    EXPECT_EQ(Finished().what, user_too ? What::kStoppedByUser : What::kStoppedByEngine);
  }
}

TEST_F(JobMachineTest, OverHostsAnEnginesStopLetsATrainedJobEnd) {
  options_.num_hosts = 1;
  options_.job.clear_checkpoint();
  Host host;
  host.name = "h1";
  host.nonce = 1;
  Take(event::HostUp{host});
  TrainToTheEnd();
  Take(event::UserStop{"SIGTERM", /*by_engine=*/true});
  Take(event::DigestReady{1, Digest()});
  Take(event::ResultWritten{});
  StopAll();
  EXPECT_EQ(Finished().status, absl::OkStatus());
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
