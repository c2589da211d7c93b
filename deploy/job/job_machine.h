// Runs a job: decides which processes are started, when a generation ends, and what follows. Pure:
// no thread, clock, socket or file; runners carry out what it wants done.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "deploy/job/generation.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobMachineOptions {
  Job job;  // As LoadJob returns it; where it writes checkpoints, with a directory.
  GenerationStart start;
  bool is_resumed = false;
  std::vector<std::string> notices;  // Said as it begins.
  // Scores the held-out rows with the checkpoint of `start`, and trains nothing.
  bool eval_only = false;
  // Workers exchange blocks: each is told where all of them are.
  bool introduces_workers = false;
  CheckpointManifest manifest;          // Of its checkpoints: all but generation, step and shards.
  uint64_t max_log_bytes = UINT64_MAX;  // cluster.max_log_size
  // That the job begins with; 0: all of it runs on this machine, and no host is asked for.
  size_t num_hosts = 0;
  std::string build;  // That hosts must have; "": any.
  std::vector<std::string> server_logs,
      worker_logs;  // Paths on their hosts, by index; for messages.
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
//   kSettling         kSettle later, by what was collected kStopping; from kAsking, kWritingResult
//   kStopping         AllStopped, and no manifest is being written
//                                                          kOpening (a generation later), or kEnded
//
// A server with a push log that ends after it was first configured is started again while the
// budget lasts; none starts while a manifest is being written. Not thread-safe.
class JobMachine {
 public:
  enum class Stage {
    kOpening,
    kWaitingForHosts,
    kStartingServers,
    kConfiguring,
    kStartingWorkers,
    kTraining,
    kFinishing,
    kAsking,
    kWritingResult,
    kSettling,
    kStopping,
    kEnded,
  };
  // From the first failure until all are judged: other processes end as well, so that the report
  // names the cause (a server) beside the consequence (the worker that lost it).
  static constexpr absl::Duration kSettle = absl::Milliseconds(300);
  // The same over several hosts, whose reports come at different times.
  static constexpr absl::Duration kSettleOverHosts = absl::Seconds(2);

  explicit JobMachine(JobMachineOptions options);
  ~JobMachine();

  // Times are since the job began, and never go back. Returns what is to be done, in order.
  std::vector<JobAction> Begin(absl::Duration now);
  std::vector<JobAction> Take(absl::Duration now, const JobEvent& event);
  // When the next Tick is due, at the latest; infinite: never.
  absl::Duration next_tick() const;

  Stage stage() const;
  const GenerationStart& start() const;  // Of the generation.
  Step reached() const;                  // The furthest step that was applied in any generation.

 private:
  class State;

  const std::unique_ptr<State> state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_JOB_MACHINE_H_
