// How a worker treats a server's errors: when it repeats a call, when it takes the server for lost,
// and how an error is marked that means such a loss; and what its own end says about the job.
#ifndef THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_
#define THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_

#include <cstdint>

#include "absl/status/status.h"

namespace thermocline {

struct RetryOptions {
  int64_t rpc_deadline_us = 0;
  int64_t give_up_us = 0;  // Without any answer from a server.
  int64_t min_backoff_us = 0;
  int64_t max_backoff_us = 0;
  int64_t not_ready_delay_us = 0;
  uint64_t jitter_seed = 0;
};

// The attempts of one call.
struct RetryState {
  bool sent = false;
  int64_t first_sent_us = 0;
  int failures = 0;   // In a row.
  int not_ready = 0;  // In a row.
};

// Not thread-safe.
class RetryPolicy {
 public:
  explicit RetryPolicy(const RetryOptions& options)
      : options_(options), jitter_(options.jitter_seed) {}

  // Notes that the call is sent and returns its deadline: never longer than the time left until the
  // worker gives up (but for a short grace). `last_answer_us`: when the server last answered
  // anything.
  int64_t BeginAttempt(int64_t now_us, int64_t last_answer_us, RetryState* state) const;

  // What follows an error. Unavailable and DeadlineExceeded are repeated until the server was
  // silent for too long. ResourceExhausted is repeated always: a server without room is busy, not
  // broken, and a request that can never have room gets another error. A job that waits too long
  // for it has stalled, which its launcher sees.
  struct Decision {
    bool repeat = false;
    int64_t delay_us = 0;
  };
  Decision AfterError(const absl::Status& error, int64_t now_us, int64_t last_answer_us,
                      RetryState* state);
  // How long to wait after an answer that said NOT_READY or RECOVERING; spends no retry budget.
  int64_t DelayAfterNotReady(RetryState* state) const;
  // The same after an answer that said READY but must be asked for again.
  int64_t DelayAfterUnaccepted(RetryState* state);

 private:
  int64_t SilentMicros(int64_t now_us, int64_t last_answer_us, const RetryState& state) const;
  int64_t Backoff(int failures);

  const RetryOptions options_;
  uint64_t jitter_;
};

// Marks an error that says that a server, or its push log, was lost: the worker did nothing wrong,
// and may succeed where the servers go back to a checkpoint. The mark is a payload of the status.
absl::Status MarkServerLoss(absl::Status error);
bool IsServerLoss(const absl::Status& status);

// With what a worker ends that ends so (common/base/process_limits.h). kUnavailable and
// kDeadlineExceeded without the mark: trouble with its data, or no word from the launcher.
int ExitCodeOf(const absl::Status& status);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_
