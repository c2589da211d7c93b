#include "worker/embedded/core_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/task_queue.h"
#include "common/base/trace.h"
#include "common/net/rpc.h"
#include "server/rpc/pull_handling.h"

namespace thermocline {
namespace {

// A pull under way, until its `done` has returned.
struct PullUnderWay {
  const PullCall call;
  const std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
  PullHandling handling;
  // Under the transport's mutex:
  PullTicket ticket = kNoTicket;
  bool has_ended = false;
};

template <typename Call>
absl::Status Explain(const absl::Status& status, const char* method, const Call& call) {
  return WithContext(status,
                     absl::StrCat(method, " for step ", call.step.value(), " (", call.tables.size(),
                                  " tables, ", NumKeys(call), " keys) at the embedded server"));
}

}  // namespace

struct CoreTransport::Impl {
  Impl(ServerCore* server, const Options& transport_options)
      : core(server),
        options(transport_options),
        readers(transport_options.threads),
        tasks(transport_options.threads) {}

  // Counts a call under way. False: the transport is closed.
  bool Begin() {
    absl::MutexLock lock(&mutex);
    if (closed) return false;
    ++under_way;
    return true;
  }
  void End() {
    absl::MutexLock lock(&mutex);
    --under_way;
  }
  void End(PullUnderWay* pull) {
    absl::MutexLock lock(&mutex);
    --under_way;
    pull->has_ended = true;
    held.erase(pull->ticket);
  }
  bool IsClosed() const {
    absl::MutexLock lock(&mutex);
    return closed;
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return under_way == 0; }

  TaskQueue* ThreadsOf(const PullCall& call);
  void Ask(const std::shared_ptr<PullUnderWay>& pull, int64_t deadline_us);
  void Finish(PullUnderWay* pull, absl::StatusOr<wire::PullAnswer> answer);
  absl::Status Gather(const PullCall& call) const;
  void Take(const PushCall& call, std::function<void(absl::StatusOr<wire::PushAnswer>)> done);

  ServerCore* const core;
  const Options options;
  mutable absl::Mutex mutex;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  int under_way ABSL_GUARDED_BY(mutex) = 0;                     // Calls whose `done` is to return.
  absl::flat_hash_set<PullTicket> held ABSL_GUARDED_BY(mutex);  // Pulls that the core may hold.
  // Last: their tasks use what is above. The threads of `readers` may wait for a disk, and delay no
  // push.
  TaskQueue readers;
  TaskQueue tasks;
};

// Pulls
// ------------------------------------------------------------------------------------------------

TaskQueue* CoreTransport::Impl::ThreadsOf(const PullCall& call) {
  const bool may_wait =
      call.kind == wire::PullKind::kRead ||
      std::any_of(call.tables.begin(), call.tables.end(),
                  [this](const PullSlice& slice) { return core->MayReadDisk(slice.table); });
  return may_wait ? &readers : &tasks;
}

void CoreTransport::Impl::Ask(const std::shared_ptr<PullUnderWay>& pull, int64_t deadline_us) {
  NameTraceThread("handle requests");
  pull->handling.Resume();
  if (IsClosed()) return Finish(pull.get(), absl::CancelledError("the transport is closed"));
  const PullTicket ticket = pull->handling.Ask(
      ToWire(pull->call), deadline_us, /*may_wait=*/true,
      [this, pull](const absl::StatusOr<wire::PullAnswer>& answer) { Finish(pull.get(), answer); });
  if (ticket == kNoTicket) return;
  {
    absl::MutexLock lock(&mutex);
    if (pull->has_ended) return;
    pull->ticket = ticket;
    held.insert(ticket);
    if (!closed) return;
  }
  core->DropPull(ticket);
}

void CoreTransport::Impl::Finish(PullUnderWay* pull, absl::StatusOr<wire::PullAnswer> answer) {
  if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
    const absl::Status gathered = Gather(pull->call);
    if (!gathered.ok()) answer = gathered;
  }
  if (!answer.ok()) answer = Explain(answer.status(), "Pull", pull->call);
  pull->handling.End(answer.ok());
  pull->done(std::move(answer));
  End(pull);
}

absl::Status CoreTransport::Impl::Gather(const PullCall& call) const {
  for (const PullSlice& slice : call.tables) {
    ASSIGN_OR_RETURN(const int floats, core->FloatsOf(slice.table, call.with_state));
    if (slice.rows.size() != slice.keys.size() * static_cast<size_t>(floats)) {
      return absl::InternalError(absl::StrCat("table ", slice.table.value(), ": there is room for ",
                                              slice.rows.size(), " floats, and ", slice.keys.size(),
                                              " rows have ", floats, " each"));
    }
    RETURN_IF_ERROR(core->ReadRows(slice.table, slice.keys, call.with_state,
                                   reinterpret_cast<uint8_t*>(slice.rows.data()), call.kind));
  }
  return absl::OkStatus();
}

// Pushes
// ------------------------------------------------------------------------------------------------

// The core answers, and then may apply whole steps before it returns.
void CoreTransport::Impl::Take(const PushCall& call,
                               std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  NameTraceThread("handle requests");
  const int64_t begin_us = MonotonicMicros();
  const auto finish = [this, call, begin_us,
                       done = std::move(done)](absl::StatusOr<wire::PushAnswer> answer) {
    if (!answer.ok()) answer = Explain(answer.status(), "Push", call);
    options.pushes->End(answer.ok(), MonotonicMicros() - begin_us);
    done(std::move(answer));
    End();
  };
  if (IsClosed()) return finish(absl::CancelledError("the transport is closed"));
  core->Push(ToWire(call), finish);
}

// The transport
// ------------------------------------------------------------------------------------------------

CoreTransport::CoreTransport(ServerCore* core, const Options& options)
    : impl_(std::make_unique<Impl>(core, options)) {}

CoreTransport::~CoreTransport() {
  Close();
  absl::MutexLock lock(&impl_->mutex);
  impl_->mutex.Await(absl::Condition(impl_.get(), &Impl::IsIdle));
}

void CoreTransport::Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PullAnswer>)> done) {
  CHECK_EQ(server.value(), 0u);
  if (!impl_->Begin()) {
    return done(Explain(absl::CancelledError("the transport is closed"), "Pull", call));
  }
  MethodStats* const stats =
      call.kind == wire::PullKind::kRead ? impl_->options.reads : impl_->options.pulls;
  TaskQueue* const threads = impl_->ThreadsOf(call);
  const std::shared_ptr<PullUnderWay> pull(
      new PullUnderWay{call, std::move(done), PullHandling(impl_->core, stats, threads)});
  threads->Run([impl = impl_.get(), pull, deadline_us] { impl->Ask(pull, deadline_us); });
}

void CoreTransport::Push(ServerIndex server, const PushCall& call, int64_t /*deadline_us*/,
                         std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  CHECK_EQ(server.value(), 0u);
  if (!impl_->Begin()) {
    return done(Explain(absl::CancelledError("the transport is closed"), "Push", call));
  }
  impl_->options.pushes->Begin();
  impl_->tasks.Run([impl = impl_.get(), call, done = std::move(done)]() mutable {
    impl->Take(call, std::move(done));
  });
}

void CoreTransport::Close() {
  std::vector<PullTicket> held;
  {
    absl::MutexLock lock(&impl_->mutex);
    if (std::exchange(impl_->closed, true)) return;
    held.assign(impl_->held.begin(), impl_->held.end());
  }
  for (const PullTicket ticket : held) impl_->core->DropPull(ticket);
}

}  // namespace thermocline
