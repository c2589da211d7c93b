// One epoch of a job: its processes, from the first start to the model's digest.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_RUN_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/checkpoint_loop.h"
#include "deploy/controller/epoch_start.h"
#include "deploy/controller/evaluation_loop.h"
#include "deploy/controller/rollback_policy.h"
#include "deploy/controller/run_directory.h"
#include "deploy/controller/server_group.h"
#include "deploy/controller/stall_watch.h"
#include "deploy/controller/worker_group.h"
#include "deploy/runner/signal_watch.h"
#include "deploy/runner/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobPrograms {
  std::string server;
  std::string worker;
  std::string build;  // what checkpoints say of it
};

// What is reported while an epoch runs; all are set.
struct EpochObserver {
  std::function<void(const std::vector<std::string>& addresses)> on_servers_up;
  // Lines of rank 0's metrics, maybe in pieces. Returns the evaluations that they report.
  std::function<std::vector<EvaluationReport>(absl::string_view data)> on_metrics;
  // A worker has a device; `warning` says why it leaves a GPU unused, if it does. Comes repeatedly.
  std::function<void(uint32_t rank, const std::string& warning)> on_device;
  // A server has ended, that came up before or didn't. Whether, and when, it is started again; it
  // goes on from its push log.
  std::function<RestartPolicy::Decision(size_t index, const std::string& how_it_ended,
                                        bool came_up)>
      on_server_end;
  // The job's steps up to this one are applied.
  std::function<void(Step reached)> on_reached;
  std::function<void(const std::string& text)> on_notice;  // A line for people to know at once.
  std::function<void(const CheckpointEvent& event)> on_checkpoint;
  std::function<void(const EvaluationEvent& event)> on_evaluation;
  // Samples that the steps up to a cut have read. Any thread.
  std::function<uint64_t(Step cut)> samples_through;
};

struct EpochOptions {
  EpochStart start;
  // Scores the held-out rows with the model as it begins, and trains nothing.
  bool eval_only = false;
  CheckpointStore* checkpoints = nullptr;  // Null: none are written.
  EvaluationState evaluations;             // As they stand where the epoch begins.
};

// Not thread-safe; lives on the main thread.
class EpochRun {
 public:
  // All references must outlive this object.
  EpochRun(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
           const EpochOptions& options, const EpochObserver& observer, SignalWatch* signals);

  // Starts and configures the servers, starts the workers and waits until all of these have ended
  // well.
  // Errors: kAborted (a process failed; with its last log lines), kCancelled (Ctrl-C or SIGTERM),
  // kDeadlineExceeded (a process didn't come up or answer, or nothing advances), kDataLoss (a
  // server's log or the checkpoint is damaged), and those of starting programs and writing files.
  absl::Status Train();
  // After Train. Waits for the checkpoints that are being written, and for the one of the last step
  // where the job wants it. Errors: those of Train; kAborted also: the last one can't be made.
  absl::Status FinishCheckpoints();

  // After Train. What the workers report, by rank. Errors: kDataLoss (one left no result).
  absl::StatusOr<std::vector<nlohmann::ordered_json>> WorkerResults() const {
    return workers_.ReadResults();
  }
  // After Train. The model's digest, and what the servers said before it was computed. A server
  // that dies meanwhile and is started again is asked again.
  absl::StatusOr<Digest> AskServers(std::vector<ServerReport>* reports);

  // After an error: what was lost, in a line, if going back to a checkpoint may help; else "".
  std::string Loss();
  // Where Loss() is a stall: the last step that is applied.
  std::optional<Step> stalled_at() const { return stalled_at_; }
  // After Stop. Not OK: nobody knows whether the last manifest is on the medium, so that no epoch
  // may follow before somebody looks.
  absl::Status Uncertainty() const;
  // After Stop. The next epoch begins with the newest checkpoint of this one, or as this one.
  EpochStart NextStart() const;

  // No process is left. `grace`: how long they may take to end by themselves.
  void Stop(absl::Duration grace);

 private:
  bool ReplaceServer(const ChildProcess& ended);
  absl::Status StartCheckpoints();
  void ReportEvents();
  // Whether nothing can go well any more, though every process may be fine.
  absl::Status Broken() const;
  // True: `done()`. False: for the stall timeout no server has done anything, or written anything
  // of a checkpoint. Errors: those of Supervisor::WaitUntil.
  absl::StatusOr<bool> WaitWhileAdvancing(const std::function<bool()>& done, absl::string_view what,
                                          StallWatch* stall);
  // The same; kDeadlineExceeded: false.
  absl::Status WaitAndReport(const std::function<bool()>& done, absl::string_view what);
  uint64_t CheckpointBytes() const;
  // Says which servers' disks have become full since the last look, or have room again.
  void ReportFullDisks(const std::vector<ServerReport>& reports);
  absl::Status WaitForWorkers();
  absl::Duration StallTimeout() const;
  absl::Status EndStalled(const StallWatch& stall);
  absl::Status WriteAddresses() const;
  absl::StatusOr<Digest> AskServersOnce(std::vector<ServerReport>* reports);

  const Job& job_;
  const JobPrograms& programs_;
  const RunDirectory& directory_;
  const EpochOptions options_;
  const EpochObserver& observer_;
  Supervisor supervisor_;
  ServerGroup servers_;
  WorkerGroup workers_;
  std::unique_ptr<CheckpointLoop> checkpoints_;  // Null: none are written, or not yet.
  std::unique_ptr<EvaluationLoop> evaluations_;  // Null: the job evaluates at its end only.
  uint32_t restarts_ = 0;                        // Of servers.
  std::string lost_pushes_;              // Which server, when the digest was asked for; "": none.
  bool server_given_up_ = false;         // One that ended and is not started again.
  std::vector<std::string> full_disks_;  // [num_servers], as ServerStats.push_log_full.
  std::string stall_;                    // What didn't advance, and who was waited for.
  std::optional<Step> stalled_at_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_RUN_H_
