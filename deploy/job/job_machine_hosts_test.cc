// The job machine over several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/job/job_machine.h"
#include "deploy/job/testing/checkpoint_fixture.h"
#include "deploy/job/testing/job_machine_fixture.h"

namespace thermocline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Stage = JobMachine::Stage;

// Three servers and three workers over two hosts, each with two GPUs.
class JobMachineHostsTest : public JobMachineTestBase {
 protected:
  JobMachineHostsTest() : JobMachineTestBase(3, 3) {
    Cluster& cluster = *options_.job.mutable_cluster();
    cluster.set_host_timeout_s(30);
    cluster.set_host_wait_s(300);
    options_.job.mutable_checkpoint()->set_max_rollbacks(4);
    options_.num_hosts = 2;
    options_.build = "b1";
  }

  static Host MakeHost(const std::string& name, uint64_t nonce) {
    Host host;
    host.name = name;
    host.nonce = nonce;
    host.gpus = 2;
    host.memory_bytes = 64;
    host.build = "b1";
    return host;
  }

  GenerationOutcome Finished() {
    Take(event::AllStopped{});
    return Only<action::Finish>().outcome;
  }
  void Up(const std::string& name, uint64_t nonce) { Take(event::HostUp{MakeHost(name, nonce)}); }
  void Lose(const std::string& name, uint64_t nonce) {
    Take(event::HostLost{name, nonce, "no sign for 30s"});
  }
  void ComeUp(const std::string& role) {
    for (int i = 0; i < 3; ++i) Started(absl::StrCat(role, " ", i));
  }
  // The generation has its hosts already.
  void TrainOnHosts() {
    ComeUp("server");
    for (int i = 0; i < 3; ++i) {
      Take(event::Configured{Id(absl::StrCat("server ", i)), absl::OkStatus()});
    }
    ComeUp("worker");
    ASSERT_EQ(machine().stage(), Stage::kTraining);
    actions_.clear();
  }
  void Train() {
    Up("h1", 1);
    Up("h2", 2);
    Open();
    TrainOnHosts();
  }
  // With servers on h1 only, workers on h2 only; h2 is lost, and the job waits for another.
  void LoseTheHostOfTheWorkers() {
    Host server = MakeHost("h1", 1), worker = MakeHost("h2", 2);
    server.takes_workers = worker.takes_servers = false;
    Take(event::HostUp{server});
    Take(event::HostUp{worker});
    Open();
    TrainOnHosts();
    Lose("h2", 2);
    GoBack();
    ASSERT_EQ(machine().stage(), Stage::kWaitingForHosts);
  }
  // The generation ends, and the next one is open.
  void GoBack() {
    Settle(JobMachine::kSettleOverHosts);
    ASSERT_EQ(machine().stage(), Stage::kStopping);
    actions_.clear();
    Take(event::AllStopped{});
    ASSERT_EQ(All<action::Open>().size(), 1u);
    Open();
  }
  std::vector<std::string> HostsOf(const std::string& role) {
    std::vector<std::string> hosts;
    for (int i = 0; i < 3; ++i) hosts.push_back(starts_.at(absl::StrCat(role, " ", i)).host);
    return hosts;
  }
};

TEST_F(JobMachineHostsTest, OnThisMachineNoHostIsAskedFor) {
  options_.num_hosts = 0;
  Open();
  EXPECT_EQ(machine().stage(), Stage::kStartingServers);
  EXPECT_EQ(starts_.at("server 0").host, "");
}

TEST_F(JobMachineHostsTest, ProcessesStartOnceAllHostsAreThere) {
  Open();
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  EXPECT_EQ(lines_.back(), "waiting for hosts; there so far: none");
  Up("h2", 2);
  Up("h2", 2);  // The same registration.
  EXPECT_THAT(All<action::StartProcess>(), IsEmpty());
  Up("h1", 1);
  EXPECT_EQ(machine().stage(), Stage::kStartingServers);
  EXPECT_EQ(lines_.back(), "h1: servers 0-1, workers 0-1; h2: server 2, worker 2");
  TrainOnHosts();
  EXPECT_THAT(HostsOf("server"), ElementsAre("h1", "h1", "h2"));
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h2"));
  EXPECT_EQ(starts_.at("worker 1").local_rank, 1u);
  EXPECT_EQ(starts_.at("worker 2").local_rank, 0u);
}

TEST_F(JobMachineHostsTest, WhoDidNotComeIsSaid) {
  Open();
  Up("h1", 1);
  EXPECT_EQ(machine().next_tick(), absl::Seconds(300));
  Wait(absl::Seconds(300));
  EXPECT_EQ(Finished().status,
            absl::DeadlineExceededError("1 of 2 hosts can be used after 5m (cluster.host_wait_s); "
                                        "hosts that are there: h1"));
}

// It may be a stray one: the job waits for its own hosts.
TEST_F(JobMachineHostsTest, AHostOfAnotherBuildCountsForNothing) {
  Open();
  Up("h1", 1);
  Host other = MakeHost("h2", 2);
  other.build = "b2";
  Take(event::HostUp{other});
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Wait(absl::Seconds(299));
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Wait(absl::Seconds(1));
  EXPECT_EQ(Finished().status,
            absl::DeadlineExceededError(
                "1 of 2 hosts can be used after 5m (cluster.host_wait_s); hosts that are there: "
                "h1; not used: h2 (its build is 'b2', the controller's is 'b1')"));
}

TEST_F(JobMachineHostsTest, AHostThatComesAgainWithTheRightBuildIsUsed) {
  Open();
  Up("h1", 1);
  Host other = MakeHost("h2", 2);
  other.build = "b2";
  Take(event::HostUp{other});
  Take(event::HostUp{other});  // The same registration: void.
  Up("h2", 3);
  EXPECT_EQ(machine().stage(), Stage::kStartingServers);
  TrainOnHosts();
  other.name = "h3";
  Take(event::HostUp{other});
  for (const std::string& line : lines_) EXPECT_THAT(line, ::testing::Not(HasSubstr("h3")));
}

TEST_F(JobMachineHostsTest, WithoutARoleTheJobEndsAtOnce) {
  Open();
  for (const char* name : {"h1", "h2"}) {
    Host host = MakeHost(name, 1);
    host.takes_workers = false;
    Take(event::HostUp{host});
  }
  EXPECT_EQ(Finished().status,
            absl::FailedPreconditionError("no host takes workers; hosts that are there: h1, h2"));
}

TEST_F(JobMachineHostsTest, AServerThatEndsAloneIsStartedAgainOnItsHost) {
  Train();
  End("server 2", kKilled);
  EXPECT_EQ(starts_.at("server 2").id.incarnation, 2u);
  EXPECT_EQ(starts_.at("server 2").host, "h2");
  EXPECT_EQ(starts_.at("server 2").address, "at server 2");
}

// Losses
// ------------------------------------------------------------------------------------------------

TEST_F(JobMachineHostsTest, ALostHostsRanksRunOnTheHostsThatAreLeft) {
  Train();
  Lose("h2", 2);
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  GoBack();
  EXPECT_THAT(lines_, Contains(HasSubstr("server 2 was lost with host h2, worker 2 was lost with "
                                         "host h2; going back to the beginning (generation 2)")));
  EXPECT_EQ(lines_.back(), "h1 runs 3 workers on 2 GPUs");
  TrainOnHosts();
  EXPECT_THAT(HostsOf("server"), ElementsAre("h1", "h1", "h1"));
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h1"));
  EXPECT_EQ(starts_.at("worker 2").local_rank, 2u);
}

// Workers start once all servers serve: none on a host that was lost before.
TEST_F(JobMachineHostsTest, AHostThatIsLostBeforeItsWorkersStartTakesThemAlong) {
  options_.job.mutable_cluster()->set_servers(1);
  options_.server_logs.resize(1);
  Up("h1", 1);
  Up("h2", 2);
  Open();
  ASSERT_EQ(machine().stage(), Stage::kStartingServers);
  ASSERT_EQ(starts_.at("server 0").host, "h1");
  Lose("h2", 2);
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  GoBack();
  Started("server 0");
  Take(event::Configured{Id("server 0"), absl::OkStatus()});
  ASSERT_EQ(machine().stage(), Stage::kStartingWorkers);
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h1"));
}

// Its log lies there: where it was to be started again, it is lost as well.
TEST_F(JobMachineHostsTest, AServerOfALostHostIsNotStartedAgain) {
  Train();
  End("server 2", kKilled);
  Started("server 2");
  End("server 2", kKilled);  // Comes after a delay.
  Lose("h2", 2);
  actions_.clear();
  Wait(absl::Seconds(1));
  EXPECT_THAT(All<action::StartProcess>(), IsEmpty());
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  GoBack();
  EXPECT_EQ(generation(), 2u);
}

TEST_F(JobMachineHostsTest, EndsThatComeAfterTheLossChangeNothing) {
  Train();
  const ProcessId server = Id("server 2");
  Lose("h2", 2);
  Take(event::ProcessEnded{server, {std::nullopt, "was lost", "was lost"}});
  Take(event::ProcessStarted{server, "late"});
  Take(event::NotStarted{server, absl::UnavailableError("its host is gone")});
  EXPECT_THAT(All<action::StartProcess>(), IsEmpty());
  EXPECT_THAT(All<action::Configure>(), IsEmpty());
  EXPECT_EQ(machine().stage(), Stage::kSettling);
}

TEST_F(JobMachineHostsTest, WhatTheJobCausedBeatsTheLossOfAHost) {
  Train();
  Lose("h2", 2);
  now_ += absl::Seconds(1);
  End("worker 0", kBadData);
  Settle(JobMachine::kSettleOverHosts);
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, GenerationOutcome::What::kFailed);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("worker 0 exited with code 1; log"));
}

// A worker that lost its server ends before the loss of the host is known.
TEST_F(JobMachineHostsTest, ALossThatComesWhileOthersAreCollectedIsJudgedWithThem) {
  Train();
  End("worker 0", kLostServer);
  Lose("h2", 2);
  GoBack();
  EXPECT_THAT(lines_,
              Contains(HasSubstr("server 2 was lost with host h2, worker 2 was lost with host "
                                 "h2, worker 0 exited")));
  EXPECT_EQ(starts_.at("server 2").host, "h1");
}

TEST_F(JobMachineHostsTest, WithoutARoleTheJobWaitsAndThenEnds) {
  LoseTheHostOfTheWorkers();
  Wait(absl::Seconds(299));
  Lose("h2", 2);  // Known.
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  actions_.clear();
  Wait(absl::Seconds(1));
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.status,
            absl::DeadlineExceededError(
                "no host takes workers after 5m (cluster.host_wait_s); hosts that are there: h1; "
                "lost: h2 (no sign for 30s); the job can be resumed once there are hosts"));
  EXPECT_FALSE(outcome.goes_back);
  EXPECT_EQ(RecordOf(outcome).what(), JobOutcome::LOST);
}

TEST_F(JobMachineHostsTest, AHostThatComesWhileTheJobWaitsIsUsed) {
  LoseTheHostOfTheWorkers();
  Host worker = MakeHost("h2", 3);
  worker.takes_servers = false;
  Take(event::HostUp{worker});
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h2", "h2", "h2"));
}

TEST_F(JobMachineHostsTest, WhenAllHostsAreLostAsManyAreWaitedFor) {
  Train();
  Lose("h1", 1);
  Lose("h2", 2);
  GoBack();
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Up("h2", 12);
  EXPECT_THAT(All<action::StartProcess>(), IsEmpty()) << "it would get all";
  Up("h3", 13);  // It need not be the same ones.
  TrainOnHosts();
  EXPECT_THAT(HostsOf("server"), ElementsAre("h2", "h2", "h3"));
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h2", "h2", "h3"));
}

// Their losses become known one after the other, or their agents register anew.
TEST_F(JobMachineHostsTest, AsManyAreThoseThatTrained) {
  Train();
  Lose("h1", 1);
  GoBack();
  EXPECT_EQ(machine().stage(), Stage::kStartingServers) << "h2 is left";
  Up("h2", 12);
  GoBack();
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Up("h1", 11);
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h2"));
}

TEST_F(JobMachineHostsTest, AfterTheWaitThoseThatCameGoOnAndTheNextGenerationSpreadsAgain) {
  Train();
  Lose("h1", 1);
  Lose("h2", 2);
  GoBack();
  Up("h2", 12);
  Wait(absl::Seconds(299));
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Wait(absl::Seconds(1));
  EXPECT_THAT(lines_, Contains("1 of 2 hosts are there after 5m (cluster.host_wait_s); going on "
                               "without the others"));
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h2", "h2", "h2"));
  Up("h1", 11);
  End("worker 0", kKilled);
  GoBack();
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h2"));
}

// Another registration of an agent means that what ran under the one before is gone.
TEST_F(JobMachineHostsTest, AHostThatComesAgainWasLostBefore) {
  Train();
  Up("h2", 7);
  EXPECT_THAT(lines_, Contains("host h2 is lost: its agent was started again"));
  EXPECT_EQ(machine().stage(), Stage::kSettling);
  Lose("h2", 2);  // What is known already.
  Up("h2", 2);    // Late.
  GoBack();
  TrainOnHosts();
  EXPECT_THAT(HostsOf("server"), ElementsAre("h1", "h1", "h2"));
}

TEST_F(JobMachineHostsTest, AnAdditionalHostIsUsedFromTheNextGenerationOn) {
  Train();
  Up("h3", 3);
  EXPECT_EQ(lines_.back(), "host h3 came; it is used from the next generation on");
  EXPECT_THAT(actions_, ElementsAre(::testing::VariantWith<action::Tell>(::testing::_)));
  Lose("h3", 3);  // It had nothing.
  EXPECT_EQ(machine().stage(), Stage::kTraining);
  Up("h3", 4);
  End("worker 0", kKilled);
  GoBack();
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h2", "h3"));
}

TEST_F(JobMachineHostsTest, AStopEndsTheWaitForHosts) {
  Open();
  Take(event::UserStop{"stopped by signal 2 (Interrupt)"});
  EXPECT_EQ(Finished().what, GenerationOutcome::What::kStoppedByUser);
}

TEST_F(JobMachineHostsTest, LogsAreNamedWithTheirHosts) {
  Up("h1", 1);
  Up("h2", 2);
  Open();
  Wait(absl::Seconds(60));  // The loss of a host would be known by then.
  GoBack();
  EXPECT_THAT(lines_, Contains("server 0 did not come up within 1m (cluster.startup_timeout_s and "
                               "host_timeout_s); its log: server-0.log (on h1); going back to the "
                               "beginning (generation 2)"));
}

// The others may do; and the limit holds where they don't.
TEST_F(JobMachineHostsTest, AHostThatCanNotStartAProcessDoesNotEndTheJob) {
  options_.job.mutable_checkpoint()->set_max_rollbacks(2);
  Up("h1", 1);
  Up("h2", 2);
  Open();
  Take(event::NotStarted{Id("server 2"), absl::NotFoundError("on host h2: no such program")});
  GoBack();
  EXPECT_THAT(lines_, Contains("server 2 can't be started: on host h2: no such program; going "
                               "back to the beginning (generation 2)"));
  TrainOnHosts();
  End("server 2", kKilled);
  Take(event::NotStarted{Id("server 2"), absl::UnavailableError("on host h2: no process")});
  GoBack();
  ComeUp("server");
  for (int i = 0; i < 3; ++i) {
    Take(event::Configured{Id(absl::StrCat("server ", i)), absl::OkStatus()});
  }
  for (const char* worker : {"worker 1", "worker 2"}) {  // The second comes while it settles.
    Take(event::NotStarted{Id(worker), absl::UnavailableError("on host h2: no process")});
  }
  Settle(JobMachine::kSettleOverHosts);
  const GenerationOutcome outcome = Finished();
  EXPECT_EQ(outcome.what, GenerationOutcome::What::kLost);
  EXPECT_EQ(outcome.status,
            absl::AbortedError("worker 1 can't be started: on host h2: no process\n"
                               "worker 2 can't be started: on host h2: no process"));
  EXPECT_THAT(lines_.back(), HasSubstr("not going back: checkpoint.max_rollbacks is 2"));
}

// A host may be cut off while its servers are configured: its loss comes later.
TEST_F(JobMachineHostsTest, AServerThatDoesNotAnswerIsAskedAgain) {
  Up("h1", 1);
  Up("h2", 2);
  Open();
  ComeUp("server");
  Take(event::Configured{Id("server 2"), absl::UnavailableError("cut off")});
  EXPECT_EQ(machine().stage(), Stage::kConfiguring);
  Lose("h2", 2);
  GoBack();
  EXPECT_EQ(generation(), 2u);
}

TEST_F(JobMachineHostsTest, AFullDiskIsNamedWithItsHost) {
  Train();
  Wait(absl::Seconds(1));
  event::StatusAnswered answered;
  answered.generation = generation();
  for (int i = 0; i < 3; ++i) answered.servers.push_back({"", ServerStats()});
  answered.servers[1].stats->set_push_log_full("ext4 at /scratch has 0 bytes free");
  Take(answered);
  EXPECT_EQ(lines_.back(), absl::StrCat("server 1 on host ", starts_.at("server 1").host,
                                        ": ext4 at /scratch has 0 bytes free; the job waits until "
                                        "there is room"));
}

// An engine has asked the job to end, and one server's disk is full.
class LastCheckpointTest : public JobMachineHostsTest {
 protected:
  LastCheckpointTest() : cluster_(&disk_, 3, 3) {
    options_.job.mutable_checkpoint()->set_at_end(false);
    Train();
    Answer({{false, 0}, {false, 1}, {false, 2}});  // The round that is under way.
    Take(event::UserStop{"SIGTERM", /*by_engine=*/true});
  }

  void Answer(const std::vector<CheckpointCall>& calls) {
    actions_.clear();
    Take(event::CheckpointAnswered{generation(), cluster_.Call(calls)});
  }
  // One round of the coordinator; then server 0 fails to write the checkpoint that is named, or all
  // write it. Returns whether there was one.
  bool Poll(bool is_full) {
    Wait(absl::Milliseconds(200));
    for (auto calls = All<action::CallProcesses>(); !calls.empty();
         calls = All<action::CallProcesses>()) {
      Answer(calls.back().calls);
    }
    const auto& cuts = cluster_.servers_[0].cuts;
    if (cuts.empty() || cuts.begin()->second.state() != CutStatus::NAMED) return false;
    const int64_t step = cuts.begin()->first;
    cluster_.AdvanceTo(step);
    if (is_full) {
      cluster_.Fail(0, step, "disk full");
      return true;
    }
    for (FakeCluster::Server& server : cluster_.servers_) {
      server.cuts[step].set_state(CutStatus::WRITTEN);
      server.cuts[step].mutable_shard()->set_base_step(-1);
    }
    return true;
  }

  SimulatedDisk disk_;
  FakeCluster cluster_;
};

TEST_F(LastCheckpointTest, IsTriedAgainUntilItSucceeds) {
  int tries = 0;
  for (int round = 0; round < 1000 && tries < 7; ++round) {
    tries += Poll(/*is_full=*/true) ? 1 : 0;
    ASSERT_EQ(machine().stage(), Stage::kTraining);
  }
  ASSERT_EQ(tries, 7);
  for (int round = 0; round < 1000 && All<action::Commit>().empty(); ++round) Poll(false);
  EXPECT_EQ(machine().stage(), Stage::kTraining);
  Take(event::Committed{generation(), absl::OkStatus(), false});
  EXPECT_EQ(machine().stage(), Stage::kStopping);
}

TEST_F(LastCheckpointTest, IsNotWaitedForWithoutEnd) {
  const absl::Duration begin = now_;
  int tries = 0;
  while (machine().stage() == Stage::kTraining && now_ < begin + absl::Minutes(10)) {
    tries += Poll(/*is_full=*/true) ? 1 : 0;
  }
  EXPECT_EQ(machine().stage(), Stage::kStopping);
  EXPECT_GT(tries, 3);
  EXPECT_GE(now_ - begin, absl::Seconds(20));
  EXPECT_LT(now_ - begin, absl::Seconds(25));
  EXPECT_EQ(Finished().what, GenerationOutcome::What::kStoppedByEngine);
}

}  // namespace
}  // namespace thermocline
