#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/trace.h"
#include "worker/session/session_state.h"

namespace thermocline {

void PsSession::Impl::StartPush(PushWork work, PushDone done) {
  const std::shared_ptr<PushOperation> push = calls.NewPush(work);
  push->finish = std::move(done);
  const std::shared_ptr<PullOperation> count = calls.NewCount(work.step);
  if (count != nullptr) {
    ++push->unreleased;
    count->finish = [self = shared_from_this(), push, count = count.get()](const absl::Status&) {
      self->OnRowsCounted(push, *count);
    };
  }
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    CHECK(work.step == last_begun + 1);
    last_begun = work.step;
    Begin(push);
    if (failure.ok()) {
      pushes.emplace(push->step, push);
      for (Server& server : servers) server.pushes.push_back(push);
    }
    FinishIfDone(*push, &actions);
    if (count != nullptr) {
      Begin(count);
      for (uint32_t server = 0; server < options.num_servers; ++server) {
        SendPulls(count, server, &actions);
      }
      FinishIfDone(*count, &actions);
    }
  }
  RunActions(&actions);
}

void PsSession::Impl::OnRowsCounted(const std::shared_ptr<PushOperation>& push,
                                    const PullOperation& count) {
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    if (!failure.ok()) return;
    push->ReleaseWithLimits(calls.LimitsOf(count));
    push->since_us = scheduler->NowMicros();
    for (uint32_t server = 0; server < options.num_servers; ++server) {
      SendPushes(server, &actions);
    }
  }
  RunActions(&actions);
}

absl::Status PsSession::Impl::ReleaseWave(Step step, size_t wave, bool again) {
  std::shared_ptr<PushOperation> push;
  {
    absl::MutexLock lock(&mutex);
    if (!failure.ok()) return failure;
    const auto found = pushes.find(step);
    if (again && found == pushes.end()) return absl::OkStatus();
    // The push can't be over: chunks of its last wave wait for this release.
    CHECK(found != pushes.end());
    push = found->second;
    if (wave == kLastWave) wave = push->waves.size() - 1;
    CHECK_LT(wave, push->waves.size());
    CHECK(!push->waves[wave].released);
    CHECK_EQ(push->waves[wave].is_wanted, again);
    ++push->in_flight;  // The check below borrows the values.
    ++push->waves[wave].in_flight;
  }
  // This needs no mutex: no chunk of this wave is sent yet, so no other thread reads its values.
  const absl::Status finite = calls.CheckFinite(*push, wave);
  absl::Status result;
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --push->in_flight;
    --push->waves[wave].in_flight;
    if (!finite.ok()) {
      Fail(finite, &actions);
    } else if (failure.ok()) {
      push->Release(wave);
      push->since_us = scheduler->NowMicros();
      for (uint32_t server = 0; server < options.num_servers; ++server) {
        SendPushes(server, &actions);
      }
      ReturnWaveIfDone(push, wave, &actions);
    }
    FinishIfDone(*push, &actions);
    result = failure;
  }
  RunActions(&actions);
  return result;
}

// Notes that the server has the chunk, or that it will not be sent again.
void PsSession::Impl::TakeAnswered(const std::shared_ptr<PushOperation>& push,
                                   PushOperation::Chunk* chunk, Actions* actions) {
  if (chunk->phase == CallPhase::kAnswered) return;
  chunk->phase = CallPhase::kAnswered;
  --push->waves[chunk->wave].unanswered;
  ReturnWaveIfDone(push, chunk->wave, actions);
}

void PsSession::Impl::ReturnWaveIfDone(const std::shared_ptr<PushOperation>& push, size_t wave,
                                       Actions* actions) {
  PushOperation::Wave& state = push->waves[wave];
  if (!state.is_lent || !state.released || state.unanswered > 0 || state.in_flight > 0) return;
  state.released = false;
  actions->push_back([push, wave] { push->on_returned(wave); });
}

void PsSession::Impl::SendPushes(uint32_t server, Actions* actions) {
  if (!failure.ok() || servers[server].pushes.empty()) return;
  const std::shared_ptr<PushOperation> push = servers[server].pushes.front();
  PushOperation::ToServer& to = push->to[server];
  while (!to.waiting.empty() && to.in_flight < options.max_calls_in_flight) {
    const size_t i = to.waiting.front();
    to.waiting.pop_front();
    ++stats.calls_examined;
    PushOperation::Chunk& chunk = to.chunks[i];
    CHECK(chunk.phase == CallPhase::kWaiting);
    chunk.phase = CallPhase::kInFlight;
    chunk.call.header = HeaderFor(server);
    if (!chunk.retry.sent) ++to.sent;
    ++to.in_flight;
    ++push->in_flight;
    ++push->waves[chunk.wave].in_flight;
    stats.bytes_pushed += chunk.bytes;
    actions->push_back([self = shared_from_this(), push, server, i,
                        deadline_us = BeginAttempt(server, &chunk.retry)] {
      self->transport->Push(ServerIndex(server), push->to[server].chunks[i].call, deadline_us,
                            [self, push, server, i,
                             begin_ns = TraceBegin()](absl::StatusOr<wire::PushAnswer> answer) {
                              TraceInterval("push to", push->step, begin_ns, {"server", server});
                              self->OnPushAnswer(push, server, i, answer);
                            });
    });
  }
}

void PsSession::Impl::OnPushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                   size_t index, const absl::StatusOr<wire::PushAnswer>& answer) {
  PushOperation::ToServer& to = push->to[server];
  const size_t wave = to.chunks[index].wave;
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --push->in_flight;
    --push->waves[wave].in_flight;
    --to.in_flight;
    NoteAnswer(server, answer.status());
    if (answer.ok()) NoteTaken("push", server, &actions);
    if (failure.ok() && !to.acknowledged) {
      int64_t delay_us = 0;
      if (answer.ok()) {
        TakePushAnswer(push, server, index, *answer, &actions);
      } else if (OnError(*push, "push", server, answer.status(), &to.chunks[index].retry, &delay_us,
                         &actions)) {
        RepeatChunk(push, server, index, delay_us, &actions);
      }
    }
    ReturnWaveIfDone(push, wave, &actions);
    SendPushes(server, &actions);
    FinishIfDone(*push, &actions);
  }
  RunActions(&actions);
}

// A server accepts a push when it has all its chunks, and gets a push after the one before was
// acknowledged. If it has accepted more, another process pushes as this rank, and the server would
// take this worker's gradients for repetitions.
absl::Status PsSession::Impl::CheckAccepted(const PushOperation& push, uint32_t server,
                                            Step accepted_through) const {
  if (accepted_through < push.step) return absl::OkStatus();
  const size_t sent = push.to[server].sent, chunks = push.to[server].chunks.size();
  if (accepted_through == push.step && sent == chunks) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("server ", server, " accepted step ", accepted_through.value(), " from rank ",
                   options.rank.value(), ", but this worker has sent it ", sent, " of ", chunks,
                   " chunks of step ", push.step.value(),
                   " and nothing later: another process pushes as this rank"));
}

void PsSession::Impl::TakePushAnswer(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                     size_t index, const wire::PushAnswer& answer,
                                     Actions* actions) {
  PushOperation::ToServer& to = push->to[server];
  PushOperation::Chunk& chunk = to.chunks[index];
  const absl::Status plausible = CheckAccepted(*push, server, answer.accepted_through);
  if (!plausible.ok()) {
    Fail(plausible, actions);
  } else if (answer.accepted_through == push->step) {
    to.acknowledged = true;
    for (PushOperation::Chunk& one : to.chunks) TakeAnswered(push, &one, actions);
    servers[server].acked_through = push->step;
    CHECK(servers[server].pushes.front() == push);
    servers[server].pushes.pop_front();
    push->complete = --push->unacknowledged == 0;
  } else if (answer.readiness != wire::Readiness::kReady) {
    ++stats.not_ready;
    RepeatChunk(push, server, index, policy.DelayAfterNotReady(&chunk.retry), actions);
  } else {
    TakeAnswered(push, &chunk, actions);
    if (++to.answered == to.chunks.size()) RepeatPush(push, server, actions);
  }
}

void PsSession::Impl::RepeatChunk(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                  size_t index, int64_t delay_us, Actions* actions) {
  push->to[server].chunks[index].phase = CallPhase::kBackingOff;
  After(
      delay_us,
      [this, push, server, index](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        push->to[server].chunks[index].phase = CallPhase::kWaiting;
        push->to[server].waiting.push_front(index);
        SendPushes(server, later);
      },
      actions);
}

// Every chunk was answered, and yet the push was not accepted: the server was restarted, and has
// lost some of them.
void PsSession::Impl::RepeatPush(const std::shared_ptr<PushOperation>& push, uint32_t server,
                                 Actions* actions) {
  PushOperation::ToServer& to = push->to[server];
  ++stats.retries;
  to.answered = 0;
  for (PushOperation::Chunk& chunk : to.chunks) {
    chunk.phase = CallPhase::kBackingOff;
    PushOperation::Wave& wave = push->waves[chunk.wave];
    ++wave.unanswered;
    if (wave.released || wave.is_wanted) continue;
    wave.is_wanted = true;
    actions->push_back([push, number = chunk.wave] { push->on_wanted(number); });
  }
  After(
      policy.DelayAfterUnaccepted(&to.rounds),
      [this, push, server](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        PushOperation::ToServer& later_to = push->to[server];
        for (size_t i = 0; i < later_to.chunks.size(); ++i) {
          PushOperation::Chunk& chunk = later_to.chunks[i];
          chunk.phase = CallPhase::kWaiting;
          if (push->waves[chunk.wave].released) later_to.waiting.push_back(i);
        }
        SendPushes(server, later);
      },
      actions);
}

}  // namespace thermocline
