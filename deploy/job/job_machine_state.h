// The inside of the job machine: what it knows, and what it does about each event.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_STATE_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_STATE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/job/budgets.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/generation.h"
#include "deploy/job/generation_state.h"
#include "deploy/job/host.h"
#include "deploy/job/job_machine.h"
#include "deploy/job/process.h"

namespace thermocline {

class JobMachine::State {
 public:
  explicit State(JobMachineOptions options);
  void Begin();
  // Runs what is due at `now`, takes the event, and runs what follows from it.
  void Take(absl::Duration now, const JobEvent& event);
  std::vector<JobAction> TakeActions() { return std::exchange(actions_, {}); }
  absl::Duration next_tick() const;

  Stage stage() const { return stage_; }
  const GenerationStart& start() const { return generation_.start; }
  Step reached() const { return reached_; }

 private:
  // Why a generation ends.
  struct Cause {
    Outcome::What what = Outcome::What::kTrained;
    absl::Status status;
    std::string reason;  // Where going back may help.
  };

  // job_machine.cc: from the opening to training.
  void On(const event::Tick&) {}
  void On(const event::Opened& opened);
  void On(const event::ProcessStarted& started);
  void On(const event::WorkerResult& result);
  void On(const event::ProcessEnded& ended);
  void On(const event::NotStarted& failed);
  void On(const event::Configured& configured);
  void On(const event::Introduced& introduced);
  void On(const event::CheckpointRequested& requested);
  void Advance();
  void Open(const GenerationStart& start);
  void StartServers();
  void ConfigureServers();
  void Configure(size_t server);
  void StartWorkers();
  void BeginTraining();
  void Introduce();
  CheckpointOptions OptionsOfCheckpoints();
  void OnServerEnd(size_t index);
  void StartDueServers();
  void CheckStartup(ProcessRole role);

  // job_machine_hosts.cc: which hosts there are, and which runs what.
  void On(const event::HostUp& up);
  void On(const event::HostLost& lost);
  void WaitForHosts();
  void LookAtHosts();
  size_t HostsToWaitFor() const;
  std::string LogOf(ProcessRole role, size_t index) const;

  // job_machine_training.cc: what is watched and made meanwhile.
  void On(const event::StatusAnswered& answered);
  void On(const event::Progressed& progressed);
  void On(const event::Evaluated& evaluated);
  void On(const event::CheckpointAnswered& answered);
  void On(const event::Committed& committed);
  void On(const event::Removed& removed);
  void On(const event::Decided& decided);
  void WatchForStalls();
  void Look(const event::StatusAnswered& answered);
  void LookAtConfiguring(const event::StatusAnswered& answered);
  void ReportFullDisks(const std::vector<ServerReport>& reports);
  void OnStall();
  void AskStatus(absl::Duration timeout, bool is_final);
  void WorkOnCheckpoints();
  void ReportCheckpoints();
  void OnFinished(const absl::Status& error);
  void WorkOnEvaluations();

  // job_machine_end.cc: how it ends, and what follows.
  void On(const event::DigestReady& ready);
  void On(const event::ResultWritten& written);
  void On(const event::UserStop& stop);
  bool MakesLastCheckpoint(const event::UserStop& stop);
  void On(const event::AllStopped&);
  void On(const event::RunnerFailed& failed);
  void OnTrained();
  void Ask();
  void OnNoDigest(const absl::Status& status);
  void WriteResult(absl::StatusOr<Digest> digest);
  void Fail(const absl::Status& status);
  void GiveUp(const absl::Status& trouble);
  void Settle();
  void OnSettled();
  void Stop();
  void ConcludeIfStopped();
  Cause FindCause() const;
  absl::Status StatusOfEnd(const Cause& cause) const;
  Outcome Judge();
  GenerationStart NextStart() const;

  void Do(JobAction action) { actions_.push_back(std::move(action)); }
  void Tell(std::string text) { Do(action::Tell{std::move(text)}); }
  bool IsOurs(uint64_t generation) const { return generation == generation_.start.generation; }
  bool IsRunning() const { return stage_ < Stage::kWritingResult; }  // It may go on.
  bool IsConfiguredOnce() const;
  bool CanGoBack() const;         // A loss may lead to another generation.
  bool IsAwaitedByHosts() const;  // An engine's stop, and agents hold on (deploy/nodes/node.cc).
  bool SchedulesBatches() const;  // By the loss: hot and cold batches take turns.
  bool TakesReports() const;      // Workers wait for what is decided on one of worker 0.
  bool TakesConfigurationAtOnce() const;
  absl::Duration StallTimeout() const;
  absl::Duration StartupTimeout() const;

  static constexpr char kLastRequest[] = "last";  // The machine's own; clients' begin with digits.
  const JobMachineOptions options_;
  const bool writes_checkpoints_;
  absl::Duration now_;
  Stage stage_ = Stage::kOpening;
  GenerationState generation_;
  JobBudgets budgets_;
  SampleCounter samples_;
  Step reached_ = kNoStep;
  HostTable hosts_;
  std::vector<Host> placed_;      // Hosts of the last placement; empty: there was none.
  size_t num_trained_hosts_ = 0;  // Of the last generation that came to train; 0: none did.
  std::string user_stop_;         // How; "": no.
  bool is_engines_stop_ = false;
  absl::Duration last_request_by_;     // After it, the last checkpoint is not tried again.
  std::vector<std::string> requests_;  // For checkpoints, that no coordinator has.
  std::vector<JobAction> actions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_STATE_H_
