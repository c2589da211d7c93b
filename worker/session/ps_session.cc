#include "worker/session/ps_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "worker/session/retry_policy.h"
#include "worker/session/session_state.h"

namespace thermocline {
namespace {

// A server that is only busy has room again within this time.
constexpr int64_t kRefusalWorthSayingMicros = 1'000'000;

// Whether the server was silent for too long, lacks pushes that it acknowledged, or is of another
// job or generation.
bool MeansServerLoss(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error) || absl::IsDataLoss(error) ||
         absl::IsFailedPrecondition(error);
}

}  // namespace

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

absl::Status PsSession::ReleaseWave(Step step, size_t wave) {
  return impl_->ReleaseWave(step, wave, /*again=*/false);
}

absl::Status PsSession::ReleaseWaveAgain(Step step, size_t wave) {
  return impl_->ReleaseWave(step, wave, /*again=*/true);
}

void PsSession::Fail(const absl::Status& reason) {
  CHECK(!reason.ok());
  Actions actions;
  {
    absl::MutexLock lock(&impl_->mutex);
    impl_->Fail(reason, &actions);
  }
  RunActions(&actions);
}

void PsSession::AwaitApplied(Step step, PushDone done) {
  static constexpr Key kAnyKey = 0;
  const TableLayout& table = impl_->options.tables.front();
  const auto row = std::make_shared<std::vector<float>>(table.dim);
  const ServerIndex server =
      ClusterMap(impl_->options.num_servers).ServerOfHash(KeyHash(TableSalt(table.id), kAnyKey));
  PullWork read;
  read.kind = wire::PullKind::kRead;
  read.step = step + 1;
  read.slices.resize(impl_->options.num_servers);
  read.slices[server.value()].push_back({table.id, {&kAnyKey, 1}, absl::MakeSpan(*row)});
  Pull(std::move(read),
       [row, done = std::move(done)](absl::Status status, Step) { done(std::move(status)); });
}

void PsSession::ProbeAll() { impl_->ProbeAll(); }

absl::Status PsSession::Drain() {
  absl::MutexLock lock(&impl_->mutex, absl::Condition(impl_.get(), &Impl::NothingInFlight));
  return impl_->failure;
}

absl::Status PsSession::status() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->failure;
}

Step PsSession::acked_through() const {
  absl::MutexLock lock(&impl_->mutex);
  Step acked = impl_->last_begun;
  for (const Impl::Server& server : impl_->servers) acked = std::min(acked, server.acked_through);
  return acked;
}

PsSessionStats PsSession::stats() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->stats;
}

std::vector<SessionWait> PsSession::waits(int64_t at_least_us) const {
  absl::MutexLock lock(&impl_->mutex);
  const int64_t now_us = impl_->scheduler->NowMicros();
  std::vector<SessionWait> waits;
  for (uint32_t server = 0; server < impl_->servers.size(); ++server) {
    const Impl::Server& at = impl_->servers[server];
    const auto add = [&](bool is_push, const Operation& operation) {
      const int64_t waited_us = now_us - operation.since_us;
      if (waited_us < at_least_us) return;
      waits.push_back({ServerIndex(server), is_push, operation.step, waited_us, at.error});
    };
    for (const auto& [id, operation] : impl_->operations) {
      if (!operation->awaited.empty() && operation->awaited[server] > 0) add(false, *operation);
    }
    if (!at.pushes.empty() && at.pushes.front()->unreleased == 0) add(true, *at.pushes.front());
  }
  return waits;
}

void RunActions(Actions* actions) {
  for (std::function<void()>& action : *actions) action();
}

PsSession::Impl::Impl(const PsSessionOptions& session_options, Transport* a_transport,
                      Scheduler* a_scheduler)
    : options(session_options),
      transport(a_transport),
      scheduler(a_scheduler),
      calls(options),
      policy({options.rpc_deadline_us, options.give_up_us, options.min_backoff_us,
              options.max_backoff_us, options.not_ready_delay_us, options.jitter_seed}),
      servers(options.num_servers),
      last_begun(options.start_step - 1) {
  for (Server& server : servers) server.acked_through = last_begun;
}

wire::Header PsSession::Impl::HeaderFor(uint32_t server) const {
  return {options.job_id, options.generation, options.rank, servers[server].acked_through};
}

int64_t PsSession::Impl::BeginAttempt(uint32_t server, RetryState* retry) {
  return policy.BeginAttempt(scheduler->NowMicros(), servers[server].last_answer_us, retry);
}

void PsSession::Impl::NoteAnswer(uint32_t server, const absl::Status& status) {
  servers[server].error = status;
  if (!status.ok() && !absl::IsResourceExhausted(status)) return;
  servers[server].last_answer_us = scheduler->NowMicros();
}

// Returns true if the call is to be repeated after *delay_us; if not, the session has failed.
bool PsSession::Impl::OnError(const Operation& operation, const char* what, uint32_t server,
                              const absl::Status& error, RetryState* retry, int64_t* delay_us,
                              Actions* actions) {
  const RetryPolicy::Decision decision =
      policy.AfterError(error, scheduler->NowMicros(), servers[server].last_answer_us, retry);
  if (decision.repeat && failure.ok()) {
    ++stats.retries;
    if (absl::IsResourceExhausted(error)) NoteRefusal(what, server, error, actions);
    *delay_us = decision.delay_us;
    return true;
  }
  const absl::Status reason = DescribeError(
      operation, what, server,
      absl::Status(error.code(),
                   absl::StrCat("after ", retry->failures, " retries: ", error.message(),
                                absl::IsDeadlineExceeded(error)
                                    ? " (cluster.rpc_timeout_s is how long a call may take)"
                                    : "")));
  Fail(MeansServerLoss(error) ? MarkServerLoss(reason) : reason, actions);
  return false;
}

void PsSession::Impl::NoteRefusal(const char* what, uint32_t server, const absl::Status& error,
                                  Actions* actions) {
  Server& to = servers[server];
  const int64_t now_us = scheduler->NowMicros();
  if (to.refuses.empty()) {
    to.refuses = what;
    to.refuses_since_us = now_us;
  }
  if (to.refusal_is_said || now_us - to.refuses_since_us < kRefusalWorthSayingMicros) return;
  to.refusal_is_said = true;
  Say(absl::StrCat("server ", server, " refuses a ", to.refuses,
                   ", which is repeated until it has ", "room: ", error.message()),
      actions);
}

void PsSession::Impl::NoteTaken(const char* what, uint32_t server, Actions* actions) {
  Server& to = servers[server];
  if (to.refuses != what) return;
  to.refuses = "";
  if (!to.refusal_is_said) return;
  to.refusal_is_said = false;
  Say(absl::StrCat("server ", server, " takes a ", what, " again"), actions);
}

void PsSession::Impl::Say(std::string line, Actions* actions) const {
  if (!options.on_notice) return;
  actions->push_back([on_notice = options.on_notice, line = std::move(line)] { on_notice(line); });
}

absl::Status PsSession::Impl::DescribeError(const Operation& operation, const char* what,
                                            uint32_t server, const absl::Status& error) const {
  return absl::Status(error.code(),
                      absl::StrCat(what, " of rank ", options.rank.value(), ", server ", server,
                                   ", step ", operation.step.value(), ", ", error.message()));
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
    RunActions(&later);
  };
  actions->push_back(
      [this, delay_us, task = std::move(task)] { scheduler->RunAfter(delay_us, task); });
}

void PsSession::Impl::Begin(const std::shared_ptr<Operation>& operation) {
  operation->id = next_id++;
  operation->since_us = scheduler->NowMicros();
  operations.emplace(operation->id, operation);
  ++in_flight;
}

// An operation ends when it is complete or the session has failed, and no call borrows its buffers.
void PsSession::Impl::FinishIfDone(const Operation& operation, Actions* actions) {
  if (operation.in_flight > 0 || closing || (!operation.complete && failure.ok())) return;
  const auto found = operations.find(operation.id);
  if (found == operations.end()) return;
  std::shared_ptr<Operation> finished = std::move(found->second);
  operations.erase(found);
  const auto push = pushes.find(finished->step);
  if (push != pushes.end() && push->second == finished) pushes.erase(push);
  absl::Status status = finished->complete ? absl::OkStatus() : failure;
  actions->push_back(
      [self = shared_from_this(), finished = std::move(finished), status = std::move(status)] {
        {
          // `done` is moved out first, since it may own this session. It is destroyed before Drain
          // returns.
          const std::function<void(absl::Status)> finish = std::move(finished->finish);
          finish(status);
        }
        absl::MutexLock lock(&self->mutex);
        --self->in_flight;
      });
}

void PsSession::Impl::Fail(absl::Status error, Actions* actions) {
  if (!failure.ok()) return;
  failure = std::move(error);
  for (Server& server : servers) server.pushes.clear();
  // No operation ends until the transport is closed, since it may be destroyed after the last one.
  closing = true;
  // This comes before the last operation ends, since the owner may be gone then.
  if (options.on_failure) {
    actions->push_back(
        [self = shared_from_this(), error = failure] { self->options.on_failure(error); });
  }
  actions->push_back([self = shared_from_this()] { self->CloseTransport(); });
}

void PsSession::Impl::CloseTransport() {
  transport->Close();
  Actions actions;
  {
    absl::MutexLock lock(&mutex);
    closing = false;
    const std::map<uint64_t, std::shared_ptr<Operation>> all = operations;
    for (const auto& [id, operation] : all) FinishIfDone(*operation, &actions);
  }
  RunActions(&actions);
}

}  // namespace thermocline
