// The inputs and outputs of the coordinator of checkpoints: the job's options, the calls and file
// operations that a runner carries out, and the events that users see.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPERATIONS_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPERATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// One call to a server or worker. A runner makes calls to different processes at the same time, and
// calls to one process in order; after an unanswered call it makes no further one to that process.
struct CheckpointCall {
  bool to_worker = false;
  size_t index = 0;  // The server's index, or the worker's rank.
  CheckpointRequest::Action action = CheckpointRequest::STATUS;
  Step step = kNoStep;  // STATUS ignores it.
};

// The answers to calls, in their order. After kUnavailable or kDeadlineExceeded the process may
// have carried out the call or not. A call that the runner did not make has kUnavailable.
using CheckpointAnswers = std::vector<absl::StatusOr<CheckpointReply>>;

// Whether the process may have missed the call, which is then repeated.
inline bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// Makes the requests of one launcher in one generation, and numbers them. Not thread-safe.
class CheckpointRequestNumbers {
 public:
  CheckpointRequestNumbers(std::string job_id, uint64_t generation)
      : job_id_(std::move(job_id)), generation_(generation) {}

  CheckpointRequest Next(CheckpointRequest::Action action, Step step) {
    CheckpointRequest request;
    request.set_job_id(job_id_);
    request.set_generation(generation_);
    request.set_action(action);
    if (action == CheckpointRequest::STATUS) return request;
    request.set_step(step.value());
    request.set_sequence(++sequence_);
    return request;
  }
  // Takes a process's answer. Where the process has seen a higher number, of another launcher, the
  // next request gets a number above that.
  void Learn(const CheckpointReply& reply) {
    sequence_ = std::max(sequence_, reply.newest_sequence());
  }

 private:
  const std::string job_id_;
  const uint64_t generation_;
  uint64_t sequence_ = 0;
};

struct CheckpointOptions {
  size_t num_servers = 1;
  size_t num_workers = 1;
  CheckpointManifest manifest;       // What all checkpoints share: not step, samples and shards.
  std::string base;                  // The generation begins with this checkpoint; "": with none.
  CheckpointManifest base_manifest;  // The manifest of `base`.
  Step base_step = kNoStep;
  uint64_t every_steps = 0;
  bool at_end = true;
  uint32_t keep = 1;
  uint64_t max_log_bytes = UINT64_MAX;  // A larger push log makes a checkpoint.
  uint32_t staleness_steps = 0;
  // The number of samples that the steps up to `step` have read.
  std::function<uint64_t(Step step)> samples_through = [](Step) { return uint64_t{0}; };
  // The state of the evaluations up to `step`. Empty where the job has no evaluations.
  std::function<EvaluationState(Step step)> evaluations_through;
};

// Writes the manifest; the checkpoint exists once that is durable.
struct CommitCheckpoint {
  std::string name;
  CheckpointManifest manifest;
};
// As CheckpointStore::RemoveUnneeded.
struct RemoveCheckpoints {
  uint32_t keep = 1;
  std::vector<CheckpointId> in_progress;
  std::optional<CheckpointId> kept;
};
using CheckpointOperation =
    std::variant<std::monostate, std::vector<CheckpointCall>, CommitCheckpoint, RemoveCheckpoints>;

// The answer to a request for a checkpoint: its name, or why there is none.
struct CheckpointAnswer {
  std::string id;
  absl::StatusOr<std::string> name;
};

// An event that users see.
struct CheckpointEvent {
  enum Kind { kCommitted, kCalledOff, kNotRemoved };
  Kind kind = kCommitted;
  Step step;
  std::string name;
  std::string reason;    // Why it was called off, or why old ones are not removed.
  bool is_full = false;  // No server's shard builds on an older checkpoint.
  uint64_t bytes = 0;    // Written for this checkpoint.
  double pause_s = 0;    // The longest pause of any server.
  double write_s = 0;    // The longest writing time of any server.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPERATIONS_H_
