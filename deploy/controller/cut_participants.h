// The processes of an epoch, as far as checkpoints concern them.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// Calls return in bounded time. Errors: those of ControlClient; kUnavailable and kDeadlineExceeded
// say nothing about what the process has done.
class CutParticipants {
 public:
  virtual ~CutParticipants() = default;

  virtual size_t num_servers() const = 0;
  virtual size_t num_workers() const = 0;
  virtual absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                                    Step cut) = 0;
  virtual absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                                    Step cut) = 0;
  // Bytes of a server's push log.
  virtual absl::StatusOr<uint64_t> LogBytes(size_t index) = 0;

  // Runs `call`, which asks a server for its STATUS or LogBytes, for every server, and returns when
  // all calls have. An implementation whose calls take time runs them at once: servers that don't
  // answer then cost no more than one of them.
  virtual void ForEachServer(absl::FunctionRef<void(size_t index)> call) {
    for (size_t i = 0; i < num_servers(); ++i) call(i);
  }
};

// Makes the requests of one launcher in one epoch, and numbers them. Not thread-safe.
class CutRequests {
 public:
  CutRequests(std::string job_id, uint64_t epoch) : job_id_(std::move(job_id)), epoch_(epoch) {}

  // `cut` is nothing to STATUS.
  CheckpointRequest Next(CheckpointRequest::Action action, Step cut) {
    CheckpointRequest request;
    request.set_job_id(job_id_);
    request.set_epoch(epoch_);
    request.set_action(action);
    if (action == CheckpointRequest::STATUS) return request;
    request.set_step(cut.value());
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
  const uint64_t epoch_;
  uint64_t sequence_ = 0;
};

// Whether a process may have missed the call: come again.
inline bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_
