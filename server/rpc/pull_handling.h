// What becomes of a pull in the server's process, whichever way it came: as a message
// (parameter_server_service.cc), or from a worker of this process (worker/embedded).
#ifndef THERMOCLINE_SERVER_RPC_PULL_HANDLING_H_
#define THERMOCLINE_SERVER_RPC_PULL_HANDLING_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/base/task_queue.h"
#include "common/wire/messages.h"
#include "server/core/server_core.h"
#include "server/rpc/call_counts.h"

namespace thermocline {

// One pull from its call to its end: who gathers its rows, and how long it took. One thread at a
// time uses it.
class PullHandling {
 public:
  using Reply = std::function<void(const absl::StatusOr<wire::PullAnswer>&)>;

  // The call begins, and its handling. `threads` may wait for a disk.
  PullHandling(ServerCore* core, MethodStats* stats, TaskQueue* threads);

  // Handling begins only now: the call has waited for a thread.
  void Resume() { resumed_us_ = MonotonicMicros(); }

  // Asks the core. `reply` runs once with its answer, and gathers the rows: before Ask returns; or
  // on one of the threads, where the core has held the pull and answers on a thread that applies a
  // step or runs timers, and where `may_wait` is false and rows may be on the disk.
  PullTicket Ask(const wire::PullRequest& request, int64_t time_left_us, bool may_wait,
                 Reply reply);

  // The call has ended. Its hold does not count as handling.
  void End(bool ok) { stats_->End(ok, handled_us_ + MonotonicMicros() - resumed_us_); }

 private:
  ServerCore* const core_;
  MethodStats* const stats_;
  TaskQueue* const threads_;
  int64_t resumed_us_;      // When handling began, or began again after the hold.
  int64_t handled_us_ = 0;  // How long handling took before the hold.
  bool is_asking_ = true;   // Only the thread in Ask reads it.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_PULL_HANDLING_H_
