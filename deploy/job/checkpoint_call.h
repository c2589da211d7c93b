// What the job machine asks servers and workers about checkpoints.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_CALL_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// One call. Runners carry several out at once: those to different processes side by side, those to
// one process in order, and none behind one that was not answered.
struct CheckpointCall {
  bool to_worker = false;
  size_t index = 0;  // Of the server, or rank of the worker.
  CheckpointRequest::Action action = CheckpointRequest::STATUS;
  Step step = kNoStep;  // Nothing to STATUS.
};

// What came of calls, in their order. kUnavailable and kDeadlineExceeded say nothing about what the
// process has done; calls that were not made any more are kUnavailable.
using CheckpointAnswers = std::vector<absl::StatusOr<CheckpointReply>>;

// Whether a process may have missed the call: it is repeated.
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
  // What a process answered. Where it has taken a request with a higher number, which was none of
  // ours, we go on above that.
  void Learn(const CheckpointReply& reply) {
    sequence_ = std::max(sequence_, reply.newest_sequence());
  }

 private:
  const std::string job_id_;
  const uint64_t generation_;
  uint64_t sequence_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_CALL_H_
