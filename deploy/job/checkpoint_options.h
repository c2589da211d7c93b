// How a job makes checkpoints, what its coordinator wants done for that, and what people see of it.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPTIONS_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_call.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct CheckpointOptions {
  size_t num_servers = 1;
  size_t num_workers = 1;
  CheckpointManifest manifest;       // Of every checkpoint: all but step, samples and shards.
  std::string base;                  // What the generation begins with; "": nothing.
  CheckpointManifest base_manifest;  // Of that.
  Step base_step = kNoStep;
  uint64_t every_steps = 0;
  bool at_end = true;
  uint32_t keep = 1;
  uint64_t max_log_bytes = UINT64_MAX;  // A larger push log makes a checkpoint.
  uint32_t staleness_steps = 0;
  // Samples that the steps up to one have read; and how the evaluations stand with it, empty where
  // the job has none.
  std::function<uint64_t(Step step)> samples_through = [](Step) { return uint64_t{0}; };
  std::function<EvaluationState(Step step)> evaluations_through;
};

// The manifest is written: once that is certain, the checkpoint exists.
struct CommitCheckpoint {
  std::string name;
  CheckpointManifest manifest;
};
// As CheckpointStore::RemoveUnneeded.
struct RemoveCheckpoints {
  uint32_t keep = 1;
  std::vector<std::string> in_progress;
  std::string kept;
};
using CheckpointOperation =
    std::variant<std::monostate, std::vector<CheckpointCall>, CommitCheckpoint, RemoveCheckpoints>;

// The answer to a request for a checkpoint: its name, or why there is none.
struct CheckpointAnswer {
  std::string id;
  absl::StatusOr<std::string> name;
};

// For people.
struct CheckpointEvent {
  enum Kind { kCommitted, kCalledOff, kNotRemoved };
  Kind kind = kCommitted;
  Step step;
  std::string name;
  std::string reason;    // Why it was called off, or why old ones are not removed.
  bool is_full = false;  // No server builds on an older one.
  uint64_t bytes = 0;    // Written for it.
  double pause_s = 0;    // The longest of any server, as is write_s.
  double write_s = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_OPTIONS_H_
