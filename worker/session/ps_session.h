// A worker's side of the protocol: pulls and pushes of one worker to all servers, with retries,
// splitting and acknowledgement (docs/protocol.md).
//
// It is a state machine over a Transport and a Scheduler: it has no threads of its own, and only
// Drain blocks. Answers come through callbacks, which may run before the call returns. Thread-safe.
//
// An error that a retry cannot overcome fails the whole session and closes its transport. Every
// callback gets the error, with server and step in its message, once the calls under way have
// returned their borrowed buffers. An error that means the loss of a server is marked
// (retry_policy.h).
#ifndef THERMOCLINE_WORKER_SESSION_PS_SESSION_H_
#define THERMOCLINE_WORKER_SESSION_PS_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "worker/session/transport.h"

namespace thermocline {

struct PsSessionOptions {
  std::string job_id;
  uint64_t generation = 0;
  WorkerRank rank;
  uint32_t num_servers = 1;
  uint32_t staleness_steps = 0;
  std::vector<TableLayout> tables;
  // The first step that is pushed; the servers began with the model of the step before.
  Step start_step{0};
  // The largest message, its header included. Only a message of a single row may be larger.
  size_t max_chunk_bytes = 512 << 10;
  int max_calls_in_flight = 16;          // Calls of one pull or push to one server.
  int64_t rpc_deadline_us = 10'000'000;  // Longer than a server holds a pull.
  // The session fails when a server has not answered for this long. A refusal is an answer.
  int64_t give_up_us = 20'000'000;
  int64_t min_backoff_us = 5'000;  // Doubles with every failure in a row, with jitter.
  int64_t max_backoff_us = 1'000'000;
  int64_t not_ready_delay_us = 1'000;  // Doubles up to 50 times itself.
  uint64_t jitter_seed = 0;
  // Called with a line when a server refuses calls for lack of room (its disk may be full), and
  // again when it takes them. May be null.
  std::function<void(const std::string& line)> on_notice;
  // Called once, on any thread, when the session fails. May be null.
  std::function<void(const absl::Status& error)> on_failure;
};

// Rows to read at one step. The spans must stay valid until `done` has run.
struct PullWork {
  wire::PullKind kind = wire::PullKind::kTrain;
  Step step;
  Step after_step = kNoStep;  // The last push of this worker that must be in the rows.
  bool with_state = false;    // Rows are [n, row_floats]: weights, then the optimizer state.
  PullsByServer slices;       // Distinct keys of each server. A server without keys is not asked.
};

// One worker's push for a step, to all servers. A wave is a part of it whose values are ready at
// the same time. Keys and counts must be valid from StartPush on, values from ReleaseWave on, until
// `done` has run.
struct PushWork {
  Step step;
  float learning_rate = 0;
  std::vector<PushesByServer> waves;  // Keys are distinct per table over all waves.
  // [waves], or empty. The values of a lent wave are valid only from its release until
  // `on_returned(wave)` runs, when every server has its chunks. If a restarted server has lost
  // chunks, `on_wanted(wave)` runs, and the caller has to release the wave again, with the same
  // values at the same place. The last wave can't be lent. Both callbacks run like `done`, and
  // maybe after it.
  std::vector<bool> lent;
  std::function<void(size_t wave)> on_returned, on_wanted;
};

struct PsSessionStats {
  uint64_t retries = 0;         // Calls repeated after an error.
  uint64_t not_ready = 0;       // Calls repeated because the server said so.
  uint64_t bytes_pulled = 0;    // Keys and rows of answered pulls.
  uint64_t bytes_pushed = 0;    // Keys, counts and values sent, retries included.
  uint64_t calls_examined = 0;  // Waiting calls that were looked at to find the next one to send.
};

// A pull that a server has not answered, or a push that it has not acknowledged though it has all
// values.
struct SessionWait {
  ServerIndex server;
  bool is_push = false;
  Step step;
  int64_t waited_us = 0;
  absl::Status error;  // The error of the last call to the server; OK: it isn't ready.
};

class PsSession {
 public:
  // `transport` and `scheduler` must outlive the session.
  PsSession(const PsSessionOptions& options, Transport* transport, Scheduler* scheduler);
  // REQUIRES: every `done` has run.
  ~PsSession();

  // Reads all rows of `work`.
  //   complete_through: the pushes of every worker up to this step are in all rows (the smallest of
  //     the servers' answers; step - 1 if no server was asked)
  using PullDone = std::function<void(absl::Status status, Step complete_through)>;
  void Pull(PullWork work, PullDone done);

  // Begins a push; `done` runs when every server has acknowledged it. Several pushes may be under
  // way; they go to a server in the order of their steps. REQUIRES: at least one wave; the step
  // follows that of the push before (the first one's is start_step).
  using PushDone = std::function<void(absl::Status status)>;
  void StartPush(PushWork work, PushDone done);

  // Releases a wave: its values are ready. Each wave is released once, in any order. No server has
  // all chunks of a push before all its waves are released. `done` doesn't run while this call
  // looks at the values, but maybe before it returns. Errors: kInvalidArgument (a gradient or a
  // weight is not finite; names table and key); then the session fails, nothing of the wave is
  // sent, and no server ever applies any part of the push. Also the session's error, if it has
  // failed.
  absl::Status ReleaseWave(Step step, size_t wave);
  static constexpr size_t kLastWave = SIZE_MAX;  // Stands for the last wave of the push.
  // Releases a wave again, after on_wanted. Does nothing if the push is over by now.
  absl::Status ReleaseWaveAgain(Step step, size_t wave);

  // `done` runs when a server has applied every worker's push of `step`.
  void AwaitApplied(Step step, PushDone done);
  // Asks every server that has been silent for a second whether it still has all pushes that it
  // acknowledged; if one has lost them, the session fails. A worker calls it while it waits for
  // other workers, which may wait for such a push.
  void ProbeAll();

  // Waits until each `done` of the pulls and pushes begun so far has run. Returns the session's
  // error.
  absl::Status Drain();
  // Fails the session from outside, if it hasn't failed. REQUIRES: !reason.ok()
  void Fail(const absl::Status& reason);
  // The error that failed the session; OK while it works.
  absl::Status status() const;
  // The last step acknowledged by every server, or start_step - 1.
  Step acked_through() const;
  PsSessionStats stats() const;
  // The waits that have lasted at least so long; of the pushes to a server only the first, which
  // alone is sent.
  std::vector<SessionWait> waits(int64_t at_least_us) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_PS_SESSION_H_
