// The job machine over several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/job/job_machine.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Stage = JobMachine::Stage;

const ProcessEnd kBadData = {1, "exited with code 1 (NaN)", "exited with code 1; log"};
const ProcessEnd kLostServer = {3, "exited with code 3", "exited with code 3; log"};
const ProcessEnd kKilled = {std::nullopt, "was killed by signal 9 (Killed)", "was killed; log"};

// Three servers and three workers over two hosts, each with two GPUs.
class JobMachineHostsTest : public testing::Test {
 protected:
  JobMachineHostsTest() {
    Job& job = options_.job;
    job.set_name("job");
    job.mutable_train()->set_batch_size(10);
    Cluster& cluster = *job.mutable_cluster();
    cluster.set_servers(3);
    cluster.set_workers(3);
    cluster.set_durability(LOG_ASYNC);
    cluster.set_max_server_restarts(2);
    cluster.set_startup_timeout_s(30);
    cluster.set_stall_timeout_s(60);
    cluster.set_host_timeout_s(30);
    cluster.set_host_wait_s(300);
    job.mutable_checkpoint()->set_directory("checkpoints");
    job.mutable_checkpoint()->set_keep(1);
    job.mutable_checkpoint()->set_max_rollbacks(4);
    options_.manifest = EmptyManifest({1, Step(0)}, 3);
    options_.manifest.clear_shards();
    options_.num_hosts = 2;
    options_.build = "b1";
    for (const char* name : {"0", "1", "2"}) {
      options_.server_logs.push_back(absl::StrCat("server-", name, ".log"));
      options_.worker_logs.push_back(absl::StrCat("worker-", name, ".log"));
    }
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
        starts_[start->id.Name()] = *start;
      }
      actions_.push_back(std::move(action));
    }
  }
  void Wait(absl::Duration time) {
    now_ += time;
    Take(event::Tick{});
  }
  template <typename Action>
  std::vector<Action> All() {
    std::vector<Action> found;
    for (const JobAction& action : actions_) {
      if (const auto* each = std::get_if<Action>(&action)) found.push_back(*each);
    }
    return found;
  }
  Outcome Finished() {
    Take(event::AllStopped{});
    const std::vector<action::Finish> finished = All<action::Finish>();
    EXPECT_EQ(finished.size(), 1u);
    return finished.empty() ? Outcome() : finished[0].outcome;
  }
  uint64_t generation() { return machine().start().generation; }
  void Open() { Take(event::Opened{generation(), absl::OkStatus(), {}}); }
  void Up(const std::string& name, uint64_t nonce) { Take(event::HostUp{MakeHost(name, nonce)}); }
  void Lose(const std::string& name, uint64_t nonce) {
    Take(event::HostLost{name, nonce, "no sign for 30s"});
  }
  void ComeUp(const std::string& role) {
    for (int i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat(role, " ", i);
      Take(event::ProcessStarted{starts_.at(name).id, absl::StrCat("at ", name)});
    }
  }
  // Of a generation that has its hosts.
  void TrainOnHosts() {
    ComeUp("server");
    for (int i = 0; i < 3; ++i) {
      Take(event::Configured{starts_.at(absl::StrCat("server ", i)).id, absl::OkStatus()});
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
  void End(const std::string& name, const ProcessEnd& end) {
    Take(event::ProcessEnded{starts_.at(name).id, end});
  }
  // The generation ends, and the next one is open.
  void GoBack() {
    Wait(JobMachine::kSettleOverHosts);
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

  JobMachineOptions options_;
  std::unique_ptr<JobMachine> machine_;
  absl::Duration now_;
  std::vector<JobAction> actions_;
  std::vector<std::string> lines_;
  std::map<std::string, action::StartProcess> starts_;  // The last ones, by name.
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

TEST_F(JobMachineHostsTest, AnotherBuildEndsTheJobAtOnce) {
  Open();
  Up("h1", 1);
  Host other = MakeHost("h2", 2);
  other.build = "b2";
  Take(event::HostUp{other});
  EXPECT_EQ(Finished().status,
            absl::FailedPreconditionError(
                "1 of 2 hosts can be used; hosts that are there: h1; not used: h2 (its build is "
                "'b2', the controller's is 'b1')"));
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
  Take(event::ProcessStarted{starts_.at("server 0").id, "at server 0"});
  Take(event::Configured{starts_.at("server 0").id, absl::OkStatus()});
  ASSERT_EQ(machine().stage(), Stage::kStartingWorkers);
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h1", "h1", "h1"));
}

// Its log lies there: where it was to be started again, it is lost as well.
TEST_F(JobMachineHostsTest, AServerOfALostHostIsNotStartedAgain) {
  Train();
  End("server 2", kKilled);
  Take(event::ProcessStarted{starts_.at("server 2").id, "at server 2"});
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
  const ProcessId server = starts_.at("server 2").id;
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
  Wait(JobMachine::kSettleOverHosts);
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.what, Outcome::What::kFailed);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("worker 0 exited with code 1; log"));
}

// A worker that lost its server ends before the loss of the host is known.
TEST_F(JobMachineHostsTest, ALossThatComesWhileOthersAreCollectedIsJudgedWithThem) {
  Train();
  End("worker 0", kLostServer);
  Lose("h2", 2);
  GoBack();
  EXPECT_THAT(lines_, Contains(HasSubstr("server 2 was lost with host h2, worker 0 exited")));
  EXPECT_EQ(starts_.at("server 2").host, "h1");
}

TEST_F(JobMachineHostsTest, WithoutARoleTheJobWaitsAndThenEnds) {
  Host server = MakeHost("h1", 1), worker = MakeHost("h2", 2);
  server.takes_workers = worker.takes_servers = false;
  Take(event::HostUp{server});
  Take(event::HostUp{worker});
  Open();
  TrainOnHosts();
  Lose("h2", 2);
  GoBack();
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  Wait(absl::Seconds(299));
  Lose("h2", 2);  // Known.
  EXPECT_EQ(machine().stage(), Stage::kWaitingForHosts);
  actions_.clear();
  Wait(absl::Seconds(1));
  const Outcome outcome = Finished();
  EXPECT_EQ(outcome.status,
            absl::DeadlineExceededError(
                "no host takes workers after 5m (cluster.host_wait_s); hosts that are there: h1; "
                "lost: h2 (no sign for 30s); the job can be resumed once there are hosts"));
  EXPECT_FALSE(outcome.goes_back);
  EXPECT_EQ(RecordOf(outcome).what(), JobOutcome::LOST);
}

TEST_F(JobMachineHostsTest, AHostThatComesWhileTheJobWaitsIsUsed) {
  Host server = MakeHost("h1", 1), worker = MakeHost("h2", 2);
  server.takes_workers = worker.takes_servers = false;
  Take(event::HostUp{server});
  Take(event::HostUp{worker});
  Open();
  TrainOnHosts();
  Lose("h2", 2);
  GoBack();
  worker.nonce = 3;
  Take(event::HostUp{worker});
  TrainOnHosts();
  EXPECT_THAT(HostsOf("worker"), ElementsAre("h2", "h2", "h2"));
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
  EXPECT_EQ(Finished().what, Outcome::What::kStoppedByUser);
}

TEST_F(JobMachineHostsTest, LogsAreNamedWithTheirHosts) {
  Up("h1", 1);
  Up("h2", 2);
  Open();
  Wait(absl::Seconds(60));  // The loss of a host would be known by then.
  EXPECT_EQ(Finished().status,
            absl::DeadlineExceededError(
                "server 0 did not come up within 1m "
                "(cluster.startup_timeout_s and host_timeout_s); its log: server-0.log (on h1)"));
}

// A host may be cut off while its servers are configured: its loss comes later.
TEST_F(JobMachineHostsTest, AServerThatDoesNotAnswerIsAskedAgain) {
  Up("h1", 1);
  Up("h2", 2);
  Open();
  ComeUp("server");
  Take(event::Configured{starts_.at("server 2").id, absl::UnavailableError("cut off")});
  EXPECT_EQ(machine().stage(), Stage::kConfiguring);
  Lose("h2", 2);
  GoBack();
  EXPECT_EQ(generation(), 2u);
}

}  // namespace
}  // namespace thermocline
