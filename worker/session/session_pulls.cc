#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/trace.h"
#include "worker/session/retry_policy.h"
#include "worker/session/session_state.h"

namespace thermocline {
namespace {

constexpr int64_t kProbeIntervalUs = 1'000'000;
constexpr int64_t kProbeDeadlineUs = 1'000'000;

}  // namespace

void PsSession::Impl::Pull(PullWork work, PullDone done) {
  const std::shared_ptr<PullOperation> pull = calls.NewPull(work);
  pull->finish = [raw = pull.get(), done = std::move(done)](absl::Status status) {
    done(std::move(status), raw->complete_through);
  };
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    Begin(pull);
    for (uint32_t server = 0; server < options.num_servers; ++server) {
      SendPulls(pull, server, &actions);
    }
    FinishIfDone(*pull, &actions);
  }
  RunActions(&actions);
}

void PsSession::Impl::SendPulls(const std::shared_ptr<PullOperation>& pull, uint32_t server,
                                Actions* actions) {
  if (!failure.ok()) return;
  PullOperation::ToServer& to = pull->to[server];
  while (!to.waiting.empty() && to.in_flight < options.max_calls_in_flight) {
    const size_t i = to.waiting.front();
    to.waiting.pop_front();
    ++stats.calls_examined;
    PullOperation::Call& call = pull->calls[i];
    CHECK(call.phase == CallPhase::kWaiting);
    call.phase = CallPhase::kInFlight;
    call.call.header = HeaderFor(server);
    ++pull->in_flight;
    ++to.in_flight;
    actions->push_back(
        [self = shared_from_this(), pull, i, deadline_us = BeginAttempt(server, &call.retry)] {
          const int64_t begin_ns = TraceBegin();
          self->transport->Pull(
              pull->calls[i].server, pull->calls[i].call, deadline_us,
              [self, pull, i, begin_ns](absl::StatusOr<wire::PullAnswer> answer) {
                const PullOperation::Call& call = pull->calls[i];
                TraceInterval(call.call.kind == wire::PullKind::kTrain ? "pull from" : "read from",
                              pull->step, begin_ns, {"server", call.server.value()});
                self->OnPullAnswer(pull, i, answer);
              });
        });
  }
}

// The worker checks the staleness bound as well.
absl::Status PsSession::Impl::CheckComplete(const PullOperation& pull,
                                            const PullOperation::Call& call,
                                            Step complete_through) const {
  if (complete_through >= pull.needs_through) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "pull of rank ", options.rank.value(), ", server ", call.server.value(), ", step ",
      pull.step.value(), ": the server says that its rows are complete through step ",
      complete_through.value(), ", and that they may be read; they must be through step ",
      pull.needs_through.value()));
}

// Sends its acked_through to every server that the pull does not read from. The pull may wait for a
// push that such a server has acknowledged and lost; that server then answers DATA_LOSS. A probe is
// not repeated; the pull's next NOT_READY sends another.
void PsSession::Impl::Probe(const std::shared_ptr<PullOperation>& pull, Actions* actions) {
  if (!failure.ok()) return;
  for (uint32_t server = 0; server < options.num_servers; ++server) {
    const int64_t silent_us = scheduler->NowMicros() - servers[server].last_answer_us;
    if (pull->to[server].is_read || servers[server].is_being_probed ||
        silent_us < kProbeIntervalUs) {
      continue;
    }
    servers[server].is_being_probed = true;
    ++pull->in_flight;
    const auto call = std::make_shared<PullCall>();
    call->header = HeaderFor(server);
    call->step = options.start_step;  // Every server has the rows of that step.
    call->staleness_steps = options.staleness_steps;
    actions->push_back([self = shared_from_this(), pull, server, call] {
      const int64_t deadline_us = std::min(kProbeDeadlineUs, self->options.rpc_deadline_us);
      self->transport->Pull(
          ServerIndex(server), *call, deadline_us,
          [self, pull, server, call](const absl::StatusOr<wire::PullAnswer>& answer) {
            self->OnProbeAnswer(*pull, server, answer.status());
          });
    });
  }
}

void PsSession::Impl::ProbeAll() {
  PullWork of_nothing;
  of_nothing.step = options.start_step;
  of_nothing.slices.resize(options.num_servers);
  const std::shared_ptr<PullOperation> pull = calls.NewPull(of_nothing);
  pull->finish = [](const absl::Status&) {};
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    if (!failure.ok()) return;
    Begin(pull);
    Probe(pull, &actions);
    FinishIfDone(*pull, &actions);
  }
  RunActions(&actions);
}

void PsSession::Impl::OnProbeAnswer(PullOperation& pull, uint32_t server,
                                    const absl::Status& status) {
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --pull.in_flight;
    servers[server].is_being_probed = false;
    NoteAnswer(server, status);
    if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
      Fail(MarkServerLoss(DescribeError(pull, "pull", server, status)), &actions);
    }
    FinishIfDone(pull, &actions);
  }
  RunActions(&actions);
}

void PsSession::Impl::OnPullAnswer(const std::shared_ptr<PullOperation>& pull, size_t index,
                                   const absl::StatusOr<wire::PullAnswer>& answer) {
  PullOperation::Call& call = pull->calls[index];
  const uint32_t server = call.server.value();
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    --pull->in_flight;
    --pull->to[server].in_flight;
    NoteAnswer(server, answer.status());
    if (answer.ok()) NoteTaken("pull", server, &actions);
    int64_t delay_us = 0;
    const bool ready = answer.ok() && answer->readiness == wire::Readiness::kReady;
    absl::Status fresh =
        ready ? CheckComplete(*pull, call, answer->complete_through) : absl::OkStatus();
    if (ready && call.call.count_rows) fresh.Update(calls.AddCounts(*answer, pull.get()));
    if (!fresh.ok()) {
      Fail(fresh, &actions);
    } else if (ready) {
      call.phase = CallPhase::kAnswered;
      --pull->awaited[server];
      pull->complete = --pull->unanswered == 0;
      pull->complete_through = std::min(pull->complete_through, answer->complete_through);
      stats.bytes_pulled += call.bytes;
      SendPulls(pull, server, &actions);
    } else if (answer.ok()) {
      call.phase = CallPhase::kBackingOff;
      delay_us = policy.DelayAfterNotReady(&call.retry);
      ++stats.not_ready;
      if (answer->readiness == wire::Readiness::kNotReady) Probe(pull, &actions);
    } else if (OnError(*pull, "pull", server, answer.status(), &call.retry, &delay_us, &actions)) {
      call.phase = CallPhase::kBackingOff;
    }
    if (call.phase == CallPhase::kBackingOff) {
      After(
          delay_us,
          [this, pull, server, index](Actions* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
            pull->calls[index].phase = CallPhase::kWaiting;
            pull->to[server].waiting.push_front(index);
            SendPulls(pull, server, later);
          },
          &actions);
    }
    FinishIfDone(*pull, &actions);
  }
  RunActions(&actions);
}

}  // namespace thermocline
