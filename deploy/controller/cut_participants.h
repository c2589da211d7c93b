// The processes of an epoch, as far as checkpoints concern them.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/ids.h"
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
};

// Whether a process may have missed the call: come again.
inline bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CUT_PARTICIPANTS_H_
