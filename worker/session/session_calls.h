// The pulls and pushes that a session has under way, split into calls.
#ifndef THERMOCLINE_WORKER_SESSION_SESSION_CALLS_H_
#define THERMOCLINE_WORKER_SESSION_SESSION_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/math/row_limit.h"
#include "common/math/table_spec.h"
#include "worker/session/ps_session.h"
#include "worker/session/retry_policy.h"
#include "worker/session/transport.h"

namespace thermocline {

enum class CallPhase { kWaiting, kInFlight, kBackingOff, kAnswered };

// A pull or a push from its begin until its `done`.
struct Operation {
  uint64_t id = 0;
  Step step;                    // The step that messages name.
  size_t in_flight = 0;         // Calls and checks that borrow buffers.
  bool complete = false;        // Whether every answer has come.
  std::vector<size_t> awaited;  // [num_servers] A pull's unanswered calls; empty for a push.
  int64_t since_us = 0;         // Since when it waits for servers only; a push has all its values.
  std::function<void(absl::Status)> finish;
};

struct PullOperation : Operation {
  struct Call {
    ServerIndex server;
    PullCall call;
    uint64_t bytes = 0;
    CallPhase phase = CallPhase::kWaiting;
    RetryState retry;
  };
  struct ToServer {
    bool is_read = false;        // Whether some of the calls go to this server.
    std::deque<size_t> waiting;  // Calls in phase kWaiting, in the order in which they are sent.
    int in_flight = 0;
  };
  std::vector<Call> calls;
  std::vector<ToServer> to;  // [num_servers]
  size_t unanswered = 0;
  Step needs_through;     // Every worker's pushes up to this step must be in the rows.
  Step complete_through;  // In all answers so far they are in the rows up to this step.
  // For a count of rows: the tables that are due, and their rows in all answers so far.
  std::map<TableId, RowsByGroup> row_counts;
};

struct PushOperation : Operation {
  struct Chunk {
    PushCall call;
    size_t wave = 0;
    uint64_t bytes = 0;
    CallPhase phase = CallPhase::kWaiting;
    RetryState retry;
  };
  struct ToServer {
    std::vector<Chunk> chunks;  // By wave.
    // Chunks of released waves in phase kWaiting, in the order in which they are sent.
    std::deque<size_t> waiting;
    int in_flight = 0;
    size_t sent = 0;  // How many chunks were sent, once or more often.
    size_t answered = 0;
    bool acknowledged = false;
    // Counts rounds in which all chunks were answered and the push was not accepted.
    RetryState rounds;
  };
  struct Wave {
    bool is_lent = false;    // PushWork::lent
    bool released = false;   // Whether its values are ready.
    bool is_wanted = false;  // Whether it is to be released again.
    size_t unanswered = 0;   // Its chunks that are not answered.
    size_t in_flight = 0;    // Calls and checks that borrow its values.
  };
  // Makes a wave's chunks ready to be sent. The last wave, of which every server gets a chunk,
  // waits for all other waves, so that no server accepts the push before all of it is checked,
  // whatever the order of the releases. REQUIRES: `wave` was not released before, or is wanted.
  void Release(size_t wave);
  // Sets the push's row limits, which follow from a count of all rows. The last wave waits for
  // this, too. REQUIRES: unreleased was raised for it.
  void ReleaseWithLimits(const std::vector<wire::RowLimit>& limits);

  std::vector<ToServer> to;  // [num_servers]
  std::vector<Wave> waves;
  size_t unreleased = 0;      // Waves that were never released; one more for row limits.
  size_t unacknowledged = 0;  // How many servers have not acknowledged the push.
  std::function<void(size_t wave)> on_returned, on_wanted;

 private:
  void QueueLastWave();
};

// Makes operations from work. Immutable, and so thread-safe.
class SessionCalls {
 public:
  // `options` must outlive this object.
  explicit SessionCalls(const PsSessionOptions& options);

  std::shared_ptr<PullOperation> NewPull(const PullWork& work) const;
  std::shared_ptr<PushOperation> NewPush(const PushWork& work) const;
  // Makes a count of all servers' rows before `step`. Returns null if the push of that step needs
  // no row limits, or if they are not this worker's task.
  std::shared_ptr<PullOperation> NewCount(Step step) const;
  // Adds a server's answer to a count. Errors: kInternal (it has other tables than are due).
  absl::Status AddCounts(const wire::PullAnswer& answer, PullOperation* count) const;
  // Returns the row limits that follow from the counts of all servers.
  std::vector<wire::RowLimit> LimitsOf(const PullOperation& count) const;

  // Checks the wave's values. Errors: kInvalidArgument (servers would refuse a value; names table
  // and key).
  absl::Status CheckFinite(const PushOperation& push, size_t wave) const;

 private:
  const PsSessionOptions& options_;
  absl::flat_hash_map<TableId, const TableLayout*> tables_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_SESSION_CALLS_H_
