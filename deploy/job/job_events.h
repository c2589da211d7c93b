// The events that a job machine takes.
//
// An event of a process carries the id of the process, any other event the generation. The machine
// drops events of earlier processes and generations. Order makes things durable in time: the
// machine acts in a generation only after its Opened, and informs servers of a checkpoint only
// after its Committed.
#ifndef THERMOCLINE_DEPLOY_JOB_JOB_EVENTS_H_
#define THERMOCLINE_DEPLOY_JOB_JOB_EVENTS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/evaluations.h"
#include "deploy/job/host.h"
#include "deploy/job/process.h"
#include "deploy/report/stats_table.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

namespace event {

// Only time has passed. All events come with the time.
struct Tick {};
// The answer to Open. `base`: the manifest of the generation's base, where checkpoints are written.
struct Opened {
  uint64_t generation = 0;
  absl::Status status;
  CheckpointManifest base;
};
// A host is up, in a job over several hosts. Void for a registration (a nonce) that is known, even
// as lost. A new registration of a host that is up means that the one before is lost.
struct HostUp {
  Host host;
};
// The machine takes every process of the host as ended, and its push logs as gone.
struct HostLost {
  std::string name;
  uint64_t nonce = 0;
  std::string why;  // "no sign for 30s"
};
struct ProcessStarted {  // It serves at `address`.
  ProcessId id;
  std::string address;
};
// The result of a worker that ended well; comes after all its reports and before its ProcessEnded.
// `steps`: how many steps the job had when the worker ended; kDataLoss: the worker left no result.
struct WorkerResult {
  ProcessId id;
  absl::StatusOr<int64_t> steps;
};
struct ProcessEnded {
  ProcessId id;
  ProcessEnd end;
};
struct NotStarted {  // The process could not be made.
  ProcessId id;
  absl::Status why;
};
// The answer to Configure. OK: the server is configured. kUnavailable, kDeadlineExceeded: not yet.
// Any other error: the server refuses.
struct Configured {
  ProcessId id;
  absl::Status status;
};
// The answer to AskStatus. workers: those that were asked, by rank. checkpoint_bytes: the size of
// all files in the folders of checkpoints, which changes while servers write.
struct StatusAnswered {
  uint64_t generation = 0;
  std::vector<ServerReport> servers;  // [num_servers]
  std::vector<WorkerReport> workers;
  uint64_t checkpoint_bytes = 0;
};
struct Progressed {  // `steps` steps have read `samples` samples.
  uint64_t generation = 0;
  int64_t steps = 0;
  uint64_t samples = 0;
};
// A worker's script has failed in `step`: no later step is begun. Comes before the ProcessEnded of
// the worker, or soon after it.
struct ScriptFailed {
  uint64_t generation = 0;
  Step step;
};
// A worker has trained up to `last` and pushed all of it, and still waits for the end of its
// script, which needs nothing more of the job.
struct Trained {
  uint64_t generation = 0;
  Step last;
};
struct Evaluated {
  uint64_t generation = 0;
  EvaluationReport report;
};
struct CheckpointAnswered {  // The answer to CallProcesses.
  uint64_t generation = 0;
  CheckpointAnswers answers;
};
struct Committed {  // The answer to Commit; see CheckpointCoordinator::OnCommitted.
  uint64_t generation = 0;
  absl::Status status;
  bool may_exist = false;
};
struct Removed {  // The answer to Remove; see CheckpointCoordinator::OnRemoved.
  uint64_t generation = 0;
  std::string held_back;
};
struct Decided {  // The answer to Decide: by rank, whether a worker answered.
  uint64_t generation = 0;
  std::vector<bool> answered;
};
struct Introduced {  // The answer to Introduce: by rank, each worker's status.
  uint64_t generation = 0;
  std::vector<absl::Status> answers;
};
struct DigestReady {  // The answer to AskDigest.
  uint64_t generation = 0;
  absl::StatusOr<Digest> digest;
};
struct ResultWritten {  // The answer to WriteResult.
  absl::Status status;
};
struct CheckpointRequested {
  std::string id;
};
// A user stops the job. An engine may also end a controller by SIGTERM, and may start another,
// which then goes on. After the first stop the job leaves a checkpoint; after a second it stops at
// once.
struct UserStop {
  std::string how;  // "stopped by signal 2 (Interrupt)"
  bool by_engine = false;
  bool at_once = false;
};
struct AllStopped {};  // The answer to StopProcesses: no process is left.
// The runner can't do something that the job needs.
struct RunnerFailed {
  absl::Status status;
};

}  // namespace event

using JobEvent =
    std::variant<event::Tick, event::Opened, event::HostUp, event::HostLost, event::ProcessStarted,
                 event::WorkerResult, event::ProcessEnded, event::NotStarted, event::Configured,
                 event::StatusAnswered, event::Progressed, event::ScriptFailed, event::Trained,
                 event::Evaluated, event::CheckpointAnswered, event::Committed, event::Removed,
                 event::Decided, event::Introduced, event::DigestReady, event::ResultWritten,
                 event::CheckpointRequested, event::UserStop, event::AllStopped,
                 event::RunnerFailed>;

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_JOB_EVENTS_H_
