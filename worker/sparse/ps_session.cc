#include "worker/sparse/ps_session.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "worker/sparse/retry_policy.h"
#include "worker/sparse/session_calls.h"

namespace thermocline {
namespace {

// What is decided under the mutex and done after it is released: sends, timers, callbacks.
using Actions = std::vector<std::function<void()>>;

struct Server {
  int64_t last_answer_us = INT64_MIN / 2;
  Step acked_through = kNoStep;
  // Pushes it hasn't acknowledged, in step order; only the first one is sent.
  std::deque<std::shared_ptr<PushOperation>> pushes;
};

void Run(Actions* actions) {
  for (std::function<void()>& action : *actions) action();
}

}  // namespace

struct PsSession::Impl : std::enable_shared_from_this<PsSession::Impl> {
  Impl(const PsSessionOptions& session_options, Transport* a_transport, Scheduler* a_scheduler);

  // Pulls.
  void Pull(PullWork work, PullDone done);
  void SendPulls(const std::shared_ptr<PullOperation>& pull, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnPullAnswer(const std::shared_ptr<PullOperation>& pull, size_t index,
                    const absl::StatusOr<wire::PullAnswer>& answer);

  // Pushes.
  void StartPush(PushWork work, PushDone done);
  absl::Status ReleaseWave(Step last_step, size_t wave);
  void SendPushes(uint32_t server, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnPushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                    const absl::StatusOr<wire::PushAnswer>& answer);
  void TakePushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                      const wire::PushAnswer& answer, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RepeatPart(const std::shared_ptr<PushOperation>& push, uint32_t server, size_t index,
                  int64_t delay_us, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RepeatPush(const std::shared_ptr<PushOperation>& push, uint32_t server, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Both.
  wire::Header HeaderFor(uint32_t server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  int64_t BeginAttempt(uint32_t server, RetryState* retry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool OnError(const Operation& operation, const char* what, uint32_t server,
               const absl::Status& error, RetryState* retry, int64_t* delay_us, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Runs `then` under the mutex after `delay_us`, unless the session has failed by then.
  void After(int64_t delay_us, std::function<void(Actions*)> then, Actions* actions);
  void Begin(const std::shared_ptr<Operation>& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FinishIfDone(const Operation& operation, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Fail(absl::Status error, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const PsSessionOptions options;
  Transport* const transport;
  Scheduler* const scheduler;
  const SessionCalls calls;

  mutable absl::Mutex mutex;
  RetryPolicy policy ABSL_GUARDED_BY(mutex);
  absl::Status failure ABSL_GUARDED_BY(mutex);
  std::vector<Server> servers ABSL_GUARDED_BY(mutex);  // [num_servers]
  std::map<uint64_t, std::shared_ptr<Operation>> operations ABSL_GUARDED_BY(mutex);  // by id
  std::map<Step, std::shared_ptr<PushOperation>> pushes ABSL_GUARDED_BY(mutex);      // by last step
  uint64_t next_id ABSL_GUARDED_BY(mutex) = 0;
  Step last_begun ABSL_GUARDED_BY(mutex) = kNoStep;
  PsSessionStats stats ABSL_GUARDED_BY(mutex);
};

PsSession::Impl::Impl(const PsSessionOptions& session_options, Transport* a_transport,
                      Scheduler* a_scheduler)
    : options(session_options),
      transport(a_transport),
      scheduler(a_scheduler),
      calls(options),
      policy({options.rpc_deadline_us, options.give_up_us, options.min_backoff_us,
              options.max_backoff_us, options.not_ready_delay_us, options.jitter_seed}),
      servers(options.num_servers) {}

// Pulls
// ------------------------------------------------------------------------------------------------

void PsSession::Impl::Pull(PullWork work, PullDone done) {
  const std::shared_ptr<PullOperation> pull = calls.NewPull(work);
  pull->finish = [raw = pull.get(), done = std::move(done)](absl::Status status) {
    done(std::move(status), raw->complete_through);
  };
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    Begin(pull);
    SendPulls(pull, &actions);
    FinishIfDone(*pull, &actions);
  }
  Run(&actions);
}

void PsSession::Impl::SendPulls(const std::shared_ptr<PullOperation>& pull, Actions* actions) {
  if (!failure.ok()) return;
  for (size_t i = 0; i < pull->calls.size(); ++i) {
    PullOperation::Call& call = pull->calls[i];
    const uint32_t server = call.server.value();
    if (call.phase != CallPhase::kWaiting ||
        pull->in_flight_to[server] >= options.max_calls_in_flight) {
      continue;
    }
    call.phase = CallPhase::kInFlight;
    call.call.header = HeaderFor(server);
    ++pull->in_flight;
    ++pull->in_flight_to[server];
    actions->push_back(
        [self = shared_from_this(), pull, i, deadline_us = BeginAttempt(server, &call.retry)] {
          self->transport->Pull(pull->calls[i].server, pull->calls[i].call, deadline_us,
                                [self, pull, i](absl::StatusOr<wire::PullAnswer> answer) {
                                  self->OnPullAnswer(pull, i, answer);
                                });
        });
  }
}

void PsSession::Impl::OnPullAnswer(const std::shared_ptr<PullOperation>& pull, size_t index,
                                   const absl::StatusOr<wire::PullAnswer>& answer) {
  PullOperation::Call& call = pull->calls[index];
  const uint32_t server = call.server.value();
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --pull->in_flight;
    --pull->in_flight_to[server];
    if (answer.ok()) servers[server].last_answer_us = scheduler->NowMicros();
    int64_t delay_us = 0;
    if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
      call.phase = CallPhase::kAnswered;
      pull->complete = --pull->unanswered == 0;
      pull->complete_through = std::min(pull->complete_through, answer->complete_through);
      stats.bytes_pulled += call.bytes;
      SendPulls(pull, &actions);
    } else if (answer.ok()) {
      call.phase = CallPhase::kBackingOff;
      delay_us = policy.DelayAfterNotReady(&call.retry);
      ++stats.not_ready;
    } else if (OnError(*pull, "pull", server, answer.status(), &call.retry, &delay_us, &actions)) {
      call.phase = CallPhase::kBackingOff;
    }
    if (call.phase == CallPhase::kBackingOff) {
      After(
          delay_us,
          [this, pull, index](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
            pull->calls[index].phase = CallPhase::kWaiting;
            SendPulls(pull, later);
          },
          &actions);
    }
    FinishIfDone(*pull, &actions);
  }
  Run(&actions);
}

// Pushes
// -----------------------------------------------------------------------------------------------

void PsSession::Impl::StartPush(PushWork work, PushDone done) {
  const std::shared_ptr<PushOperation> push = calls.NewPush(work);
  push->finish = std::move(done);
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    CHECK(work.first_step == last_begun + 1);
    last_begun = work.last_step;
    Begin(push);
    if (failure.ok()) {
      pushes.emplace(push->last_step, push);
      for (Server& server : servers) server.pushes.push_back(push);
    }
    FinishIfDone(*push, &actions);
  }
  Run(&actions);
}

absl::Status PsSession::Impl::ReleaseWave(Step last_step, size_t wave) {
  std::shared_ptr<PushOperation> push;
  {
    absl::MutexLock lock(&mutex);
    if (!failure.ok()) return failure;
    const auto found = pushes.find(last_step);
    CHECK(found != pushes.end());
    push = found->second;
    CHECK_LT(wave, push->released.size());
    CHECK(!push->released[wave]);
  }
  // Without the mutex: no part of this wave is sent yet, so nobody else looks at its values.
  const absl::Status finite = calls.CheckFinite(*push, wave);
  absl::Status result;
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    if (!finite.ok()) {
      Fail(finite, &actions);
    } else if (failure.ok()) {
      push->released[wave] = true;
      for (uint32_t server = 0; server < options.num_servers; ++server) {
        SendPushes(server, &actions);
      }
    }
    result = failure;
  }
  Run(&actions);
  return result;
}

void PsSession::Impl::SendPushes(uint32_t server, Actions* actions) {
  if (!failure.ok() || servers[server].pushes.empty()) return;
  const std::shared_ptr<PushOperation> push = servers[server].pushes.front();
  PushOperation::ToServer& to = push->to[server];
  for (size_t i = 0; i < to.parts.size() && to.in_flight < options.max_calls_in_flight; ++i) {
    PushOperation::Part& part = to.parts[i];
    if (part.phase != CallPhase::kWaiting || !push->released[part.wave]) continue;
    part.phase = CallPhase::kInFlight;
    part.call.header = HeaderFor(server);
    ++to.in_flight;
    ++push->in_flight;
    stats.bytes_pushed += part.bytes;
    actions->push_back([self = shared_from_this(), push, server, i,
                        deadline_us = BeginAttempt(server, &part.retry)] {
      self->transport->Push(ServerIndex(server), push->to[server].parts[i].call, deadline_us,
                            [self, push, server, i](absl::StatusOr<wire::PushAnswer> answer) {
                              self->OnPushAnswer(push, server, i, answer);
                            });
    });
  }
}

void PsSession::Impl::OnPushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                   size_t index, const absl::StatusOr<wire::PushAnswer>& answer) {
  PushOperation::ToServer& to = push->to[server];
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --push->in_flight;
    --to.in_flight;
    if (answer.ok()) servers[server].last_answer_us = scheduler->NowMicros();
    if (failure.ok() && !to.acknowledged) {
      int64_t delay_us = 0;
      if (answer.ok()) {
        TakePushAnswer(push, server, index, *answer, &actions);
      } else if (OnError(*push, "push", server, answer.status(), &to.parts[index].retry, &delay_us,
                         &actions)) {
        RepeatPart(push, server, index, delay_us, &actions);
      }
    }
    SendPushes(server, &actions);
    FinishIfDone(*push, &actions);
  }
  Run(&actions);
}

void PsSession::Impl::TakePushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                     size_t index, const wire::PushAnswer& answer,
                                     Actions* actions) {
  PushOperation::ToServer& to = push->to[server];
  PushOperation::Part& part = to.parts[index];
  if (answer.accepted_through > last_begun) {
    Fail(absl::FailedPreconditionError(absl::StrCat(
             "server ", server, " accepted step ", answer.accepted_through.value(), " from rank ",
             options.rank.value(), ", which this worker has not pushed")),
         actions);
  } else if (answer.accepted_through >= push->last_step) {
    to.acknowledged = true;
    servers[server].acked_through = push->last_step;
    CHECK(servers[server].pushes.front() == push);
    servers[server].pushes.pop_front();
    push->complete = --push->unacknowledged == 0;
  } else if (answer.readiness != wire::Readiness::kReady) {
    ++stats.not_ready;
    RepeatPart(push, server, index, policy.DelayAfterNotReady(&part.retry), actions);
  } else {
    part.phase = CallPhase::kAnswered;
    if (++to.answered == to.parts.size()) RepeatPush(push, server, actions);
  }
}

void PsSession::Impl::RepeatPart(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                 size_t index, int64_t delay_us, Actions* actions) {
  push->to[server].parts[index].phase = CallPhase::kBackingOff;
  After(
      delay_us,
      [this, push, server, index](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        push->to[server].parts[index].phase = CallPhase::kWaiting;
        SendPushes(server, later);
      },
      actions);
}

// Every part was answered and yet the push was not accepted: the server forgot some (it was
// restarted).
void PsSession::Impl::RepeatPush(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                 Actions* actions) {
  PushOperation::ToServer& to = push->to[server];
  ++stats.retries;
  to.answered = 0;
  for (PushOperation::Part& part : to.parts) part.phase = CallPhase::kBackingOff;
  After(
      policy.DelayAfterUnaccepted(&to.rounds),
      [this, push, server](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        for (PushOperation::Part& part : push->to[server].parts) part.phase = CallPhase::kWaiting;
        SendPushes(server, later);
      },
      actions);
}

// Both
// -------------------------------------------------------------------------------------------------

wire::Header PsSession::Impl::HeaderFor(uint32_t server) const {
  return {options.job_id, options.epoch, options.rank, servers[server].acked_through};
}

int64_t PsSession::Impl::BeginAttempt(uint32_t server, RetryState* retry) {
  return policy.BeginAttempt(scheduler->NowMicros(), servers[server].last_answer_us, retry);
}

// True where the call is to be repeated after *delay_us; else the session has failed.
bool PsSession::Impl::OnError(const Operation& operation, const char* what, uint32_t server,
                              const absl::Status& error, RetryState* retry, int64_t* delay_us,
                              Actions* actions) {
  const RetryPolicy::Decision decision =
      policy.AfterError(error, scheduler->NowMicros(), servers[server].last_answer_us, retry);
  if (decision.repeat && failure.ok()) {
    ++stats.retries;
    *delay_us = decision.delay_us;
    return true;
  }
  Fail(
      absl::Status(error.code(), absl::StrCat(what, " of rank ", options.rank.value(), ", server ",
                                              server, ", step ", operation.step.value(), ", after ",
                                              retry->failures, " retries: ", error.message())),
      actions);
  return false;
}

void PsSession::Impl::After(int64_t delay_us, std::function<void(Actions*)> then,
                            Actions* actions) {
  auto task = [weak = weak_from_this(), then = std::move(then)] {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self == nullptr) return;
    Actions later;
    {
      absl::MutexLock lock(&self->mutex);
      if (self->failure.ok()) then(&later);
    }
    Run(&later);
  };
  actions->push_back(
      [this, delay_us, task = std::move(task)] { scheduler->RunAfter(delay_us, task); });
}

void PsSession::Impl::Begin(const std::shared_ptr<Operation>& operation) {
  operation->id = next_id++;
  operations.emplace(operation->id, operation);
}

// An operation ends when it is complete or the session has failed, and no call borrows its buffers.
void PsSession::Impl::FinishIfDone(const Operation& operation, Actions* actions) {
  if (operation.in_flight > 0 || (!operation.complete && failure.ok())) return;
  const auto found = operations.find(operation.id);
  if (found == operations.end()) return;
  std::shared_ptr<Operation> finished = std::move(found->second);
  operations.erase(found);
  const auto push = pushes.find(finished->step);
  if (push != pushes.end() && push->second == finished) pushes.erase(push);
  absl::Status status = finished->complete ? absl::OkStatus() : failure;
  actions->push_back([finished = std::move(finished), status = std::move(status)] {
    // Taken out first: `done` may hold what owns this session.
    const std::function<void(absl::Status)> finish = std::move(finished->finish);
    finish(status);
  });
}

void PsSession::Impl::Fail(absl::Status error, Actions* actions) {
  if (!failure.ok()) return;
  failure = std::move(error);
  for (Server& server : servers) server.pushes.clear();
  const std::map<uint64_t, std::shared_ptr<Operation>> all = operations;
  for (const auto& [id, operation] : all) FinishIfDone(*operation, actions);
}

PsSession::PsSession(const PsSessionOptions& options, Transport* transport, Scheduler* scheduler)
    : impl_(std::make_shared<Impl>(options, transport, scheduler)) {}

PsSession::~PsSession() {
  absl::MutexLock lock(&impl_->mutex);
  CHECK(impl_->operations.empty());
}

void PsSession::Pull(PullWork work, PullDone done) {
  impl_->Pull(std::move(work), std::move(done));
}

void PsSession::StartPush(PushWork work, PushDone done) {
  impl_->StartPush(std::move(work), std::move(done));
}

absl::Status PsSession::ReleaseWave(Step last_step, size_t wave) {
  return impl_->ReleaseWave(last_step, wave);
}

void PsSession::Fail(const absl::Status& reason) {
  CHECK(!reason.ok());
  Actions actions;
  {
    absl::MutexLock lock(&impl_->mutex);
    impl_->Fail(reason, &actions);
  }
  Run(&actions);
}

absl::Status PsSession::status() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->failure;
}

Step PsSession::acked_through() const {
  absl::MutexLock lock(&impl_->mutex);
  Step acked = impl_->last_begun;
  for (const Server& server : impl_->servers) acked = std::min(acked, server.acked_through);
  return acked;
}

PsSessionStats PsSession::stats() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->stats;
}

}  // namespace thermocline
