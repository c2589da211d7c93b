// For tests of the job machine: a machine whose actions the test keeps and carries out by hand.
#ifndef THERMOCLINE_DEPLOY_JOB_TESTING_JOB_MACHINE_FIXTURE_H_
#define THERMOCLINE_DEPLOY_JOB_TESTING_JOB_MACHINE_FIXTURE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/job/resolved_job.h"
#include "deploy/job/job_machine.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {

inline const ProcessEnd kKilled = {std::nullopt, "was killed by signal 9 (Killed)",
                                   "was killed; log"};
inline const ProcessEnd kDone = {0, "exited with code 0", ""};
inline const ProcessEnd kBadData = {1, "exited with code 1 (NaN)", "exited with code 1; log"};
inline const ProcessEnd kLostServer = {3, "exited with code 3", "exited with code 3; log"};

class JobMachineTestBase : public testing::Test {
 protected:
  // A job that keeps one checkpoint and begins with nothing, as generation 1.
  JobMachineTestBase(int servers, int workers) {
    Job& job = options_.job;
    job.set_name("job");
    job.mutable_train()->set_batch_size(10);
    Cluster& cluster = *job.mutable_cluster();
    cluster.set_servers(servers);
    cluster.set_workers(workers);
    cluster.set_durability(LOG_ASYNC);
    cluster.set_max_server_restarts(2);
    cluster.set_startup_timeout_s(30);
    cluster.set_stall_timeout_s(60);
    job.mutable_checkpoint()->set_directory("checkpoints");
    job.mutable_checkpoint()->set_keep(1);
    options_.manifest = EmptyManifest({1, Step(0)}, servers);
    options_.manifest.clear_shards();
    for (int i = 0; i < servers; ++i) {
      options_.server_logs.push_back(absl::StrCat("server-", i, ".log"));
    }
    for (int i = 0; i < workers; ++i) {
      options_.worker_logs.push_back(absl::StrCat("worker-", i, ".log"));
    }
  }

  // Made by the first call, with `options_` as they are then.
  JobMachine& machine() {
    if (machine_ == nullptr) {
      machine_ = std::make_unique<JobMachine>(options_);
      Keep(machine_->Begin(now_));
    }
    return *machine_;
  }
  void Take(const JobEvent& event) { Keep(machine().Take(now_, event)); }
  void Wait(absl::Duration time) {
    now_ += time;
    Take(event::Tick{});
  }
  // Lets a failure be judged. The servers don't say what checkpoints they have.
  void Settle(absl::Duration settle = JobMachine::kSettle) {
    Wait(settle);
    if (machine().stage() == JobStage::kSettling) Wait(JobMachine::kWritePatience);
  }
  // The actions of a kind since `actions_` was cleared.
  template <typename Action>
  std::vector<Action> All() {
    std::vector<Action> found;
    for (const JobAction& action : actions_) {
      if (const auto* each = std::get_if<Action>(&action)) found.push_back(*each);
    }
    return found;
  }
  // The one action of a kind; clears `actions_`.
  template <typename Action>
  Action Only() {
    std::vector<Action> found = All<Action>();
    EXPECT_EQ(found.size(), 1u);
    actions_.clear();
    return found.empty() ? Action() : found.back();
  }
  ProcessId Id(const std::string& name) { return starts_.at(name).id; }
  uint64_t generation() { return machine().start().generation; }

  void Open() { Take(event::Opened{generation(), absl::OkStatus(), {}}); }
  void Started(const std::string& name) {
    Take(event::ProcessStarted{Id(name), absl::StrCat("at ", name)});
  }
  void End(const std::string& name, const ProcessEnd& end) {
    Take(event::ProcessEnded{Id(name), end});
  }

  // Answers of all servers, which have applied a step, and where `shard` is set have written their
  // shards.
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
    return CheckpointAnswers(NumServers(options_.job.cluster()), reply);
  }
  // A checkpoint of the step is written by all; its commit is under way.
  void WriteCheckpoint(int64_t step) {
    Wait(absl::Milliseconds(200));
    Take(event::CheckpointAnswered{generation(), Answers(step, true)});
  }
  // What ended is judged, and no process is left. Keeps the actions that follow only.
  void StopAll() {
    actions_.clear();
    Take(event::AllStopped{});
  }
  void SettleAndStop() {
    Settle();
    StopAll();
  }
  GenerationOutcome Finished() { return Only<action::Finish>().outcome; }

  JobMachineOptions options_;
  std::unique_ptr<JobMachine> machine_;
  absl::Duration now_;
  std::vector<JobAction> actions_;
  std::vector<std::string> lines_;                      // For the user, all.
  std::map<std::string, action::StartProcess> starts_;  // The last ones, by name.

 private:
  void Keep(std::vector<JobAction> actions) {
    for (JobAction& action : actions) {
      if (const auto* tell = std::get_if<action::Tell>(&action)) lines_.push_back(tell->text);
      if (const auto* start = std::get_if<action::StartProcess>(&action)) {
        starts_[start->id.Name()] = *start;
      }
      actions_.push_back(std::move(action));
    }
  }
};

// On one machine: two servers and two workers.
class JobMachineTest : public JobMachineTestBase {
 protected:
  using Stage = JobMachine::Stage;

  JobMachineTest() : JobMachineTestBase(2, 2) {
    CheckpointPolicy& checkpoint = *options_.job.mutable_checkpoint();
    checkpoint.set_every_steps(10);
    checkpoint.set_at_end(false);
    checkpoint.set_max_rollbacks(2);
  }

  void StartServers() {
    Open();
    for (const char* name : {"server 0", "server 1"}) Started(name);
  }
  void StartWorkers() {
    StartServers();
    for (const char* name : {"server 0", "server 1"}) {
      Take(event::Configured{Id(name), absl::OkStatus()});
    }
  }
  void Train() {
    StartWorkers();
    for (const char* name : {"worker 0", "worker 1"}) Started(name);
    EXPECT_EQ(machine().stage(), Stage::kTraining);
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
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_TESTING_JOB_MACHINE_FIXTURE_H_
