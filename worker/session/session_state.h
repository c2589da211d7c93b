// A session's state, and the transitions that answers and timers cause (docs/machines.md, "The
// worker's session"). Pulls are in session_pulls.cc, pushes in session_pushes.cc, and what both
// need in ps_session.cc.
#ifndef THERMOCLINE_WORKER_SESSION_SESSION_STATE_H_
#define THERMOCLINE_WORKER_SESSION_SESSION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/wire/messages.h"
#include "worker/session/ps_session.h"
#include "worker/session/retry_policy.h"
#include "worker/session/session_calls.h"
#include "worker/session/transport.h"

namespace thermocline {

// Sends, timers and callbacks that are decided under the mutex and carried out after it is
// released.
using Actions = std::vector<std::function<void()>>;
void RunActions(Actions* actions);

struct PsSession::Impl : std::enable_shared_from_this<PsSession::Impl> {
  Impl(const PsSessionOptions& session_options, Transport* a_transport, Scheduler* a_scheduler);

  // ---- Pulls.
  void Pull(PullWork work, PullDone done);
  absl::Status CheckComplete(const PullOperation& pull, const PullOperation::Call& call,
                             Step complete_through) const;
  void SendPulls(const std::shared_ptr<PullOperation>& pull, uint32_t server, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ProbeAll();
  void Probe(const std::shared_ptr<PullOperation>& pull, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnProbeAnswer(PullOperation& pull, uint32_t server, const absl::Status& status);
  void OnPullAnswer(const std::shared_ptr<PullOperation>& pull, size_t index,
                    const absl::StatusOr<wire::PullAnswer>& answer);

  // ---- Pushes.
  void StartPush(PushWork work, PushDone done);
  absl::Status ReleaseWave(Step step, size_t wave, bool again);
  void OnRowsCounted(const std::shared_ptr<PushOperation>& push, const PullOperation& count);
  void TakeAnswered(const std::shared_ptr<PushOperation>& push, PushOperation::Chunk* chunk,
                    Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ReturnWaveIfDone(const std::shared_ptr<PushOperation>& push, size_t wave, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SendPushes(uint32_t server, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnPushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                    const absl::StatusOr<wire::PushAnswer>& answer);
  absl::Status CheckAccepted(const PushOperation& push, uint32_t server,
                             Step accepted_through) const;
  void TakePushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                      const wire::PushAnswer& answer, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RepeatChunk(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                   int64_t delay_us, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RepeatPush(const std::shared_ptr<PushOperation>& push, uint32_t server, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // ---- What both need.
  wire::Header HeaderFor(uint32_t server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  int64_t BeginAttempt(uint32_t server, RetryState* retry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Notes that a call has returned, with OK or its error. A refusal for lack of room is an answer.
  void NoteAnswer(uint32_t server, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool OnError(const Operation& operation, const char* what, uint32_t server,
               const absl::Status& error, RetryState* retry, int64_t* delay_us, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // These note that a server has refused a `what` ("push") for lack of room, or has taken one.
  void NoteRefusal(const char* what, uint32_t server, const absl::Status& error, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteTaken(const char* what, uint32_t server, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Say(std::string line, Actions* actions) const;
  absl::Status DescribeError(const Operation& operation, const char* what, uint32_t server,
                             const absl::Status& error) const;
  // Runs `then` under the mutex after `delay_us`, unless the session has failed by then.
  void After(int64_t delay_us, std::function<void(Actions*)> then, Actions* actions);
  void Begin(const std::shared_ptr<Operation>& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FinishIfDone(const Operation& operation, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Fail(absl::Status error, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CloseTransport();
  bool NothingInFlight() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return in_flight == 0; }

  // What a session knows about one server.
  struct Server {
    int64_t last_answer_us = INT64_MIN / 2;
    absl::Status error;  // The status of the last call that returned.
    Step acked_through = kNoStep;
    // The kind of call that it refuses for lack of room, until it takes one; "": none.
    absl::string_view refuses;
    int64_t refuses_since_us = 0;
    bool refusal_is_said = false;  // Whether on_notice has a line about it.
    bool is_being_probed = false;  // A pull without keys (Probe) is under way.
    // Pushes that it hasn't acknowledged, by step; only the first one is sent.
    std::deque<std::shared_ptr<PushOperation>> pushes;
  };

  const PsSessionOptions options;
  Transport* const transport;
  Scheduler* const scheduler;
  const SessionCalls calls;

  mutable absl::Mutex mutex;
  RetryPolicy policy ABSL_GUARDED_BY(mutex);
  absl::Status failure ABSL_GUARDED_BY(mutex);
  // Whether the session has failed while the transport is still open.
  bool closing ABSL_GUARDED_BY(mutex) = false;
  std::vector<Server> servers ABSL_GUARDED_BY(mutex);  // [num_servers]
  std::map<uint64_t, std::shared_ptr<Operation>> operations ABSL_GUARDED_BY(mutex);  // by id
  std::map<Step, std::shared_ptr<PushOperation>> pushes ABSL_GUARDED_BY(mutex);      // by step
  uint64_t next_id ABSL_GUARDED_BY(mutex) = 0;
  size_t in_flight ABSL_GUARDED_BY(mutex) = 0;  // Operations begun whose `done` has not run yet.
  Step last_begun ABSL_GUARDED_BY(mutex);
  PsSessionStats stats ABSL_GUARDED_BY(mutex);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_SESSION_STATE_H_
