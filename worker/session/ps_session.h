// A worker's side of the protocol: pulls and pushes of one worker to all servers, with retries,
// splitting and acknowledgement (docs/architecture.md).
//
// A state machine over a Transport and a Scheduler: no threads of its own, and nothing but Drain
// blocks. Answers come through callbacks, which may run before the call returns. Thread-safe.
//
// Any error that a retry cannot overcome fails the whole session and closes its transport: every
// callback gets it, with server and step in its message, once the calls under way have returned
// their borrowed buffers. An error that means the loss of a server is marked (retry_policy.h).
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
  // One message, its header included; only a single row may be larger.
  size_t max_chunk_bytes = 512 << 10;
  int max_calls_in_flight = 16;          // To one server, of one pull or push.
  int64_t rpc_deadline_us = 10'000'000;  // Longer than a server holds a pull.
  int64_t give_up_us = 20'000'000;       // Without any answer from a server; a refusal is one.
  int64_t min_backoff_us = 5'000;        // Doubles with every failure in a row, with jitter.
  int64_t max_backoff_us = 1'000'000;
  int64_t not_ready_delay_us = 1'000;  // Doubles up to 50 times itself.
  uint64_t jitter_seed = 0;
  // Gets a line when a server refuses calls for lack of room (its disk may be full), and another
  // when it takes them again. May be null.
  std::function<void(const std::string& line)> on_notice;
  std::function<void(const absl::Status& error)> on_failure;  // Once, on any thread. May be null.
};

// Rows to read at one step. The spans stay valid until `done` ran.
struct PullWork {
  wire::PullKind kind = wire::PullKind::kTrain;
  Step step;
  Step after_step = kNoStep;  // The last push of this worker that must be in the rows.
  bool with_state = false;    // Rows are [n, row_floats]: weights, then the optimizer state.
  // [num_servers]: distinct keys of that server. A server without keys is not asked.
  std::vector<std::vector<PullSlice>> slices;
};

// One worker's push for a step, to all servers. A wave is a share of it whose values are ready at
// one time. Keys and counts are valid from StartPush on, values from ReleaseWave on, until `done`.
struct PushWork {
  Step step;
  float learning_rate = 0;
  // [waves][num_servers]: keys of that server, distinct per table over all waves.
  std::vector<std::vector<std::vector<wire::PushSlice>>> waves;
  // Where set, the values of the waves with lent[wave] are lent: valid from the wave's release only
  // until `on_returned(wave)` runs, once every server has its chunks. If a restarted server has
  // lost chunks, `on_wanted(wave)` runs, and the wave is to be released again with the same values
  // at the same place. The last wave is not lent. Both run as `done` does, and maybe after it.
  std::vector<bool> lent;  // [waves], or empty
  std::function<void(size_t wave)> on_returned, on_wanted;
};

struct PsSessionStats {
  uint64_t retries = 0;         // Calls repeated after an error.
  uint64_t not_ready = 0;       // Calls repeated because the server said so.
  uint64_t bytes_pulled = 0;    // Keys and rows of answered pulls.
  uint64_t bytes_pushed = 0;    // Keys, counts and values sent, retries included.
  uint64_t calls_examined = 0;  // Waiting ones, to find the next one to send.
};

// A pull that a server has not answered, or a push whose values are all there, not acknowledged.
struct SessionWait {
  ServerIndex server;
  bool is_push = false;
  Step step;
  int64_t waited_us = 0;
  absl::Status error;  // Of the last call to the server that returned; OK: it isn't ready.
};

class PsSession {
 public:
  // `transport` and `scheduler` outlive the session.
  PsSession(const PsSessionOptions& options, Transport* transport, Scheduler* scheduler);
  // REQUIRES: every `done` ran.
  ~PsSession();

  // Reads all rows. `complete_through`: the pushes of every worker up to it are in all of them (the
  // smallest of the servers' answers; step - 1 where there was nothing to ask).
  using PullDone = std::function<void(absl::Status status, Step complete_through)>;
  void Pull(PullWork work, PullDone done);

  // Begins a push; `done` runs when every server has acknowledged it. Pushes go to a server in the
  // order of their steps; several may be begun. REQUIRES: at least one wave; its step follows that
  // of the push before (start_step at first).
  using PushDone = std::function<void(absl::Status status)>;
  void StartPush(PushWork work, PushDone done);

  // Says that the values of a wave are ready; each wave once, in any order. No server has all
  // chunks of a push before all its waves are released. `done` doesn't run while this looks at the
  // values, but maybe before it returns. Errors: kInvalidArgument (a gradient or a weight is not
  // finite; names table and key): the session fails, nothing of the wave is sent and no server ever
  // applies any of the push. The session's error, if it has failed.
  absl::Status ReleaseWave(Step step, size_t wave);
  static constexpr size_t kLastWave = SIZE_MAX;  // The last wave of the push.
  // Releases a wave that is wanted; does nothing if the push is over by now.
  absl::Status ReleaseWaveAgain(Step step, size_t wave);

  // `done` runs when a server has applied every worker's push of `step`.
  void AwaitApplied(Step step, PushDone done);
  // Asks every server that has been silent for a second whether it has what it acknowledged; one
  // that has lost it fails the session. For a worker that waits for others, who may wait for that.
  void ProbeAll();

  // Waits until every pull and push begun so far is over: each `done` has run. The session's error.
  absl::Status Drain();
  // Fails the session from outside, if it hasn't failed. REQUIRES: !reason.ok()
  void Fail(const absl::Status& reason);
  // The error that failed the session; OK while it works.
  absl::Status status() const;
  // The last step acknowledged by every server, or start_step - 1.
  Step acked_through() const;
  PsSessionStats stats() const;
  // What has waited for at least so long. Of the pushes to a server only the first is sent.
  std::vector<SessionWait> waits(int64_t at_least_us) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_PS_SESSION_H_
