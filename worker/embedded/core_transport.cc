#include "worker/embedded/core_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/net/rpc.h"
#include "server/rpc/pull_handling.h"

namespace thermocline {
namespace {

template <typename Call>
absl::Status Explain(const absl::Status& status, const char* method, const Call& call) {
  return WithContext(status,
                     absl::StrCat(method, " for step ", call.step.value(), " (", call.tables.size(),
                                  " tables, ", NumKeys(call), " keys) at the embedded server"));
}

}  // namespace

// A pull under way, until its `done` has returned.
struct CoreTransport::PullUnderWay {
  const PullCall call;
  const std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
  PullHandling handling;
  // Under the transport's mutex:
  PullTicket ticket = kNoTicket;
  bool has_ended = false;
};

// Pulls
// ------------------------------------------------------------------------------------------------

TaskQueue* CoreTransport::ThreadsOf(const PullCall& call) {
  const bool may_wait =
      call.kind == wire::PullKind::kRead ||
      std::any_of(call.tables.begin(), call.tables.end(),
                  [this](const PullSlice& slice) { return core_->MayReadDisk(slice.table); });
  return may_wait ? &readers_ : &tasks_;
}

void CoreTransport::Ask(const std::shared_ptr<PullUnderWay>& pull, int64_t deadline_us) {
  NameTraceThread("handle requests");
  pull->handling.Resume();
  if (IsClosed()) return Finish(pull.get(), absl::CancelledError("the transport is closed"));
  const PullTicket ticket = pull->handling.Ask(
      ToWire(pull->call), deadline_us, /*may_wait=*/true,
      [this, pull](const absl::StatusOr<wire::PullAnswer>& answer) { Finish(pull.get(), answer); });
  if (ticket == kNoTicket) return;
  {
    absl::MutexLock lock(&mutex_);
    if (pull->has_ended) return;
    pull->ticket = ticket;
    held_.insert(ticket);
    if (!closed_) return;
  }
  core_->DropPull(ticket);
}

void CoreTransport::Finish(PullUnderWay* pull, absl::StatusOr<wire::PullAnswer> answer) {
  if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
    const absl::Status gathered = Gather(pull->call);
    if (!gathered.ok()) answer = gathered;
  }
  if (!answer.ok()) answer = Explain(answer.status(), "Pull", pull->call);
  pull->handling.End(answer.ok());
  pull->done(std::move(answer));
  End(pull);
}

absl::Status CoreTransport::Gather(const PullCall& call) const {
  for (const PullSlice& slice : call.tables) {
    ASSIGN_OR_RETURN(const int floats, core_->FloatsOf(slice.table, call.with_state));
    if (slice.rows.size() != slice.keys.size() * static_cast<size_t>(floats)) {
      return absl::InternalError(absl::StrCat("table ", slice.table.value(), ": there is room for ",
                                              slice.rows.size(), " floats, and ", slice.keys.size(),
                                              " rows have ", floats, " each"));
    }
    RETURN_IF_ERROR(core_->ReadRows(slice.table, slice.keys, call.with_state,
                                    reinterpret_cast<uint8_t*>(slice.rows.data()), call.kind));
  }
  return absl::OkStatus();
}

// Pushes
// ------------------------------------------------------------------------------------------------

// The core answers, and then may apply whole steps before it returns.
void CoreTransport::Take(const PushCall& call,
                         std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  NameTraceThread("handle requests");
  const int64_t begin_us = MonotonicMicros();
  const auto finish = [this, call, begin_us,
                       done = std::move(done)](absl::StatusOr<wire::PushAnswer> answer) {
    if (!answer.ok()) answer = Explain(answer.status(), "Push", call);
    options_.pushes->End(answer.ok(), MonotonicMicros() - begin_us);
    done(std::move(answer));
    End();
  };
  if (IsClosed()) return finish(absl::CancelledError("the transport is closed"));
  core_->Push(ToWire(call), finish);
}

// The transport
// ------------------------------------------------------------------------------------------------

bool CoreTransport::Begin() {
  absl::MutexLock lock(&mutex_);
  if (closed_) return false;
  ++under_way_;
  return true;
}

void CoreTransport::End(PullUnderWay* pull) {
  absl::MutexLock lock(&mutex_);
  --under_way_;
  if (pull == nullptr) return;
  pull->has_ended = true;
  held_.erase(pull->ticket);
}

bool CoreTransport::IsClosed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

CoreTransport::CoreTransport(ServerCore* core, const Options& options)
    : core_(core), options_(options), readers_(options.threads), tasks_(options.threads) {}

CoreTransport::~CoreTransport() {
  Close();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &CoreTransport::IsIdle));
}

void CoreTransport::Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PullAnswer>)> done) {
  CHECK_EQ(server.value(), 0u);
  if (!Begin()) {
    return done(Explain(absl::CancelledError("the transport is closed"), "Pull", call));
  }
  MethodStats* const stats = call.kind == wire::PullKind::kRead ? options_.reads : options_.pulls;
  TaskQueue* const threads = ThreadsOf(call);
  const std::shared_ptr<PullUnderWay> pull(
      new PullUnderWay{call, std::move(done), PullHandling(core_, stats, threads)});
  threads->Run([this, pull, deadline_us] { Ask(pull, deadline_us); });
}

void CoreTransport::Push(ServerIndex server, const PushCall& call, int64_t /*deadline_us*/,
                         std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  CHECK_EQ(server.value(), 0u);
  if (!Begin()) {
    return done(Explain(absl::CancelledError("the transport is closed"), "Push", call));
  }
  options_.pushes->Begin();
  tasks_.Run([this, call, done = std::move(done)]() mutable { Take(call, std::move(done)); });
}

void CoreTransport::Close() {
  std::vector<PullTicket> held;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
    held.assign(held_.begin(), held_.end());
  }
  for (const PullTicket ticket : held) core_->DropPull(ticket);
}

}  // namespace thermocline
