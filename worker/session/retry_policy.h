// How a worker treats a server's errors: when it repeats a call, when it takes the server for lost,
// and how it marks an error that means such a loss. Also the exit code with which it ends.
#ifndef THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_
#define THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_

#include <cstdint>

#include "absl/status/status.h"

namespace thermocline {

struct RetryOptions {
  int64_t rpc_deadline_us = 0;
  int64_t give_up_us = 0;  // A server that has not answered for this long is lost.
  int64_t min_backoff_us = 0;
  int64_t max_backoff_us = 0;
  int64_t not_ready_delay_us = 0;
  uint64_t jitter_seed = 0;
};

// The attempts of one call.
struct RetryState {
  bool sent = false;
  int64_t first_sent_us = 0;
  int failures = 0;   // Errors in a row.
  int not_ready = 0;  // Answers in a row that the server is not ready.
};

// Not thread-safe.
class RetryPolicy {
 public:
  explicit RetryPolicy(const RetryOptions& options)
      : options_(options), jitter_(options.jitter_seed) {}

  // Notes that the call is sent and returns its deadline, which is never longer than the time left
  // until the worker gives up (but for a short grace).
  //   last_answer_us: when the server last answered any call
  int64_t BeginAttempt(int64_t now_us, int64_t last_answer_us, RetryState* state) const;

  // What to do after an error. After kUnavailable and kDeadlineExceeded a call is repeated until
  // the server was silent for too long. After kResourceExhausted it is repeated always: a server
  // without room is busy, not broken, and a request that can never have room gets another error. If
  // a job waits too long for room, its launcher sees that it has stalled.
  struct Decision {
    bool repeat = false;
    int64_t delay_us = 0;
  };
  Decision AfterError(const absl::Status& error, int64_t now_us, int64_t last_answer_us,
                      RetryState* state);
  // Returns how long to wait after the answer NOT_READY or RECOVERING, which is no failure.
  int64_t DelayAfterNotReady(RetryState* state) const;
  // Returns how long to wait after all chunks of a push were answered, but the push was not
  // accepted.
  int64_t DelayAfterUnaccepted(RetryState* state);

 private:
  int64_t SilentMicros(int64_t now_us, int64_t last_answer_us, const RetryState& state) const;
  int64_t Backoff(int failures);

  const RetryOptions options_;
  uint64_t jitter_;
};

// Marks an error that means that a server, or its push log, was lost. The worker did nothing wrong,
// and may succeed once the servers have gone back to a checkpoint. The mark is a payload of the
// status.
absl::Status MarkServerLoss(absl::Status error);
bool IsServerLoss(const absl::Status& status);

// Marks an error of the user's script: it failed, or broke the rules (kExitScript).
absl::Status MarkScriptFailure(absl::Status error);
bool IsScriptFailure(const absl::Status& status);

// Marks an error of the job as it is written, which its data have shown (kExitUsage).
absl::Status MarkBadJob(absl::Status error);

// Returns the exit code of a worker that ends with `status` (common/base/process_limits.h).
// kUnavailable and kDeadlineExceeded without the mark mean trouble with its data, or that the
// launcher has not answered.
int ExitCodeOf(const absl::Status& status);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_RETRY_POLICY_H_
