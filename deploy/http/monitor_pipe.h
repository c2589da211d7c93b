// The socket between the controller and the child that serves its page (proto/monitor.proto).
#ifndef THERMOCLINE_DEPLOY_HTTP_MONITOR_PIPE_H_
#define THERMOCLINE_DEPLOY_HTTP_MONITOR_PIPE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/monitor.pb.h"

namespace thermocline {

// Sends a message, and with it `passed_fd` unless it is -1: the receiver gets a descriptor of its
// own. Blocks until the receiver has taken all but what the socket keeps.
// Errors: kUnavailable (the receiver is gone), kResourceExhausted (the message has 2 GiB or more).
absl::Status SendMonitorMessage(int fd, const MonitorMessage& message, int passed_fd = -1);

// Waits for the next message. *passed_fd: the descriptor that came with it; -1: none did.
// Errors: kOutOfRange (the sender is gone), kDataLoss (what came is no message), kUnavailable.
absl::StatusOr<MonitorMessage> ReceiveMonitorMessage(int fd, int* passed_fd);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_MONITOR_PIPE_H_
