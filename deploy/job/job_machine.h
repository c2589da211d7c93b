// Runs a job: decides which processes are started, when a generation ends, and what follows. It has
// no thread, clock, socket or file: runners carry out the actions that it returns.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "deploy/job/budgets.h"
#include "deploy/job/generation.h"
#include "deploy/job/generation_state.h"
#include "deploy/job/host.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"
#include "deploy/job/process.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobMachineOptions {
  Job job;  // As LoadJob returns it; where it writes checkpoints, with a directory.
  GenerationStart start;
  bool is_resumed = false;
  std::vector<std::string> notices;  // Lines for users at the beginning.
  // Scores the held-out rows with the checkpoint of `start`, and trains nothing.
  bool eval_only = false;
  // Workers exchange blocks, so each must learn the addresses of all.
  bool introduces_workers = false;
  CheckpointManifest manifest;  // What all checkpoints share: not generation, step and shards.
  uint64_t max_log_bytes = UINT64_MAX;  // cluster.max_log_size
  // The job begins with so many hosts; 0: it runs on this machine alone.
  size_t num_hosts = 0;
  std::string build;  // Hosts must have this build; "": any.
  // Paths of log files on their hosts, by index; for messages.
  std::vector<std::string> server_logs, worker_logs;
};

// The stages of a job, and what leads from one to the next:
//
//   kOpening          Opened                               kWaitingForHosts; on this machine
//                                                          kStartingServers
//   kWaitingForHosts  enough hosts are there               kStartingServers
//   kStartingServers  all servers serve                    kConfiguring
//   kConfiguring      all servers are configured           kStartingWorkers
//   kStartingWorkers  all workers serve, or ended well     kTraining
//   kTraining         all workers ended well               kFinishing
//   kFinishing        the last step has its checkpoint, or can't have it, or none is wanted
//                                                          kAsking
//   kAsking           the digest is there, or can't be had kWritingResult
//   kWritingResult    ResultWritten                        kStopping
//   any of these      something can't be done, a start takes too long, hosts don't come
//                                                          kStopping
//                     UserStop                             kStopping; once trained, kWritingResult;
//                                                          the first one while it trains or
//                                                          finishes: after a checkpoint. Over
//                                                          several hosts, one by the engine: after
//                                                          that, or the job's own end
//                     a process ended that should not have and is not started again, a host is
//                     lost with a process, a restarted server can't recover, nothing advances,
//                     acknowledged pushes are lost, it is not known whether a manifest is on the
//                     medium
//                                                          kSettling
//   kSettling         kSettle later, or when the checkpoint that servers write is committed, by
//   what
//                     was collected                        kStopping; from kAsking, kWritingResult
//   kStopping         AllStopped, and no manifest is being written
//                                                          kOpening (a generation later), or kEnded
//
// A server with a push log that ends after it was first configured is started again while the
// budget lasts; none starts while a manifest is being written. Not thread-safe.
class JobMachine {
 public:
  using Stage = JobStage;
  // Failures are judged so long after the first one: other processes end as well meanwhile, so that
  // the report names the cause (a server) beside the consequence (the worker that lost it).
  static constexpr absl::Duration kSettle = absl::Milliseconds(300);
  // The same over several hosts, whose reports come at different times.
  static constexpr absl::Duration kSettleOverHosts = absl::Seconds(2);

  // What is lost costs the steps since the newest checkpoint: one that all servers have begun to
  // write is waited for so long.
  static constexpr absl::Duration kWritePatience = absl::Seconds(10);

  explicit JobMachine(JobMachineOptions options);
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  // Times are since the job began, and never go back. Returns the actions to carry out, in order.
  std::vector<JobAction> Begin(absl::Duration now);
  std::vector<JobAction> Take(absl::Duration now, const JobEvent& event);
  // When the next Tick is due, at the latest; infinite: never.
  absl::Duration next_tick() const;

  Stage stage() const { return stage_; }
  const GenerationStart& start() const { return generation_.start; }  // The present generation's.
  Step reached() const { return reached_; }  // The furthest step applied in any generation.

 private:
  // Why a generation ends.
  struct Cause {
    GenerationOutcome::What what = GenerationOutcome::What::kTrained;
    absl::Status status;
    std::string reason;         // Set where going back may help.
    bool is_script = false;     // A script failed, and nothing else is known to have caused it.
    std::string process = {};   // The process that was lost; "": none was.
    bool lacks_memory = false;  // The kernel killed one for want of memory.
  };

  // From the opening to training, in job_machine.cc.
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
  action::StartProcess NextProcess(ProcessRole role, size_t index);
  void SetPlaceInData(action::StartProcess* start) const;
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

  // Which hosts there are, and which runs which process, in job_machine.cc.
  void On(const event::HostUp& up);
  void On(const event::HostLost& lost);
  void WaitForHosts();
  void LookAtHosts();
  size_t HostsToWaitFor() const;
  std::string LogOf(ProcessRole role, size_t index) const;

  // Stalls, checkpoints and evaluations during training, in job_machine_training.cc.
  void On(const event::StatusAnswered& answered);
  void On(const event::Progressed& progressed);
  void On(const event::ScriptFailed& failed);
  void On(const event::Trained& trained);
  void On(const event::Evaluated& evaluated);
  void On(const event::CheckpointAnswered& answered);
  void On(const event::Committed& committed);
  void On(const event::Removed& removed);
  void On(const event::Decided& decided);
  void WatchForStalls();
  void Look(const event::StatusAnswered& answered);
  void LookAtConfiguring(const event::StatusAnswered& answered);
  void ReportFullDisks(const std::vector<ServerReport>& reports);
  void ReportLastWait(absl::Duration last_advance);
  void OnStall();
  void AskStatus(absl::Duration timeout, bool is_final);
  bool MayWorkOnCheckpoints() const;
  bool AwaitsCheckpoint() const;
  void WorkOnCheckpoints();
  void ReportCheckpoints();
  void OnFinished(const absl::Status& error);
  void WorkOnEvaluations();

  // How a generation ends, and what follows, in job_machine_end.cc.
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
  bool MayGoBack(const Cause& cause, GenerationOutcome* outcome);
  GenerationOutcome DetermineOutcome();
  GenerationStart NextStart() const;

  void Do(JobAction action) { actions_.push_back(std::move(action)); }
  template <typename... Parts>
  void Tell(const Parts&... parts) {
    Do(action::Tell{absl::StrCat(parts...)});
  }
  bool IsOurs(uint64_t generation) const { return generation == generation_.start.generation; }
  bool IsRunning() const { return stage_ < Stage::kWritingResult; }
  bool IsConfiguredOnce() const;
  bool CanGoBack() const;         // Whether a loss may lead to another generation.
  bool IsAwaitedByHosts() const;  // An engine stops the job, and agents hold on (nodes/node.cc).
  bool OrdersDataByLoss() const;  // The order of the batches depends on the loss.
  bool TakesReports() const;      // Workers wait for a decision on each report of worker 0.
  bool TakesConfigurationAtOnce() const;
  absl::Duration StallTimeout() const;
  absl::Duration StartupTimeout() const;

  // The id of the machine's own request for a checkpoint. Ids of clients begin with digits.
  static constexpr char kLastRequest[] = "last";
  const JobMachineOptions options_;
  const bool writes_checkpoints_;
  absl::Duration now_;
  Stage stage_ = Stage::kOpening;
  GenerationState generation_;
  JobBudgets budgets_;
  SampleCounter samples_;
  Step reached_ = kNoStep;
  HostTable hosts_;
  std::vector<Host> placed_;      // The hosts of the last placement; empty: there was none.
  size_t num_trained_hosts_ = 0;  // Hosts of the last generation that trained; 0: none did.
  std::string user_stop_;         // How the user stopped the job; "": it goes on.
  bool is_engines_stop_ = false;
  absl::Duration last_request_by_;     // After this time the last checkpoint is not tried again.
  bool is_last_wait_told_ = false;     // ReportLastWait has told it.
  std::vector<std::string> requests_;  // Requests for checkpoints that no coordinator has.
  std::vector<JobAction> actions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_
