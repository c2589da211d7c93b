// Marks an error that says that a server, or its push log, was lost: the worker did nothing wrong,
// and may succeed where the servers go back to a checkpoint. The mark is a payload of the status.
#ifndef THERMOCLINE_WORKER_SPARSE_SERVER_LOSS_H_
#define THERMOCLINE_WORKER_SPARSE_SERVER_LOSS_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace thermocline {

inline constexpr char kServerLossPayload[] = "thermocline/server-loss";

inline absl::Status MarkServerLoss(absl::Status error) {
  error.SetPayload(kServerLossPayload, absl::Cord());
  return error;
}

inline bool IsServerLoss(const absl::Status& status) {
  return status.GetPayload(kServerLossPayload).has_value();
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_SERVER_LOSS_H_
