#include "worker/embedded/core_transport.h"

#include <algorithm>
#include <string>
#include <thread>
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

namespace thermocline {
namespace {

// A pull under way, until its `done` has returned.
struct PullUnderWay {
  PullUnderWay(const PullCall& pull_call, std::function<void(absl::StatusOr<wire::PullAnswer>)> on)
      : call(pull_call), done(std::move(on)) {}

  const PullCall call;
  const std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
  TaskQueue* threads = nullptr;  // They ask the core, and gather the rows.
  std::thread::id asker;         // The thread that asks the core.
  bool is_asking = true;         // Only `asker` reads it.
  int64_t resumed_us = 0;        // When handling began, or began again after the hold.
  int64_t handled_us = 0;        // How long handling took before the hold.
  int64_t held_ns = 0;           // TraceBegin() as the hold began.
  // Under the transport's mutex:
  PullTicket ticket = kNoTicket;
  bool is_answered = false;
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
  bool IsClosed() const {
    absl::MutexLock lock(&mutex);
    return closed;
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return under_way == 0; }

  TaskQueue* ThreadsOf(const PullCall& call);
  void Ask(const std::shared_ptr<PullUnderWay>& pull, int64_t deadline_us);
  void OnAnswer(const std::shared_ptr<PullUnderWay>& pull, absl::StatusOr<wire::PullAnswer> answer);
  void Finish(const PullUnderWay& pull, absl::StatusOr<wire::PullAnswer> answer);
  absl::Status Gather(const PullCall& call) const;
  void Take(const PushCall& call, std::function<void(absl::StatusOr<wire::PushAnswer>)> done);

  ServerCore* const core;
  const Options options;
  mutable absl::Mutex mutex;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  int under_way ABSL_GUARDED_BY(mutex) = 0;                     // Calls whose `done` is to return.
  absl::flat_hash_set<PullTicket> held ABSL_GUARDED_BY(mutex);  // Pulls that the core holds.
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
  pull->asker = std::this_thread::get_id();
  pull->resumed_us = MonotonicMicros();
  if (IsClosed()) return Finish(*pull, absl::CancelledError("the transport is closed"));
  const wire::PullRequest request = ToWire(pull->call);
  pull->handled_us = MonotonicMicros() - pull->resumed_us;
  pull->held_ns = TraceBegin();
  const PullTicket ticket = core->Pull(
      request,
      [this, pull](absl::StatusOr<wire::PullAnswer> answer) { OnAnswer(pull, std::move(answer)); },
      deadline_us);
  if (ticket == kNoTicket) return;
  pull->is_asking = false;
  {
    absl::MutexLock lock(&mutex);
    if (pull->is_answered) return;
    pull->ticket = ticket;
    held.insert(ticket);
    if (!closed) return;
  }
  core->DropPull(ticket);
}

// The rows of a pull that was held are gathered by a task: its answer comes on a thread that
// applies a step or runs timers.
void CoreTransport::Impl::OnAnswer(const std::shared_ptr<PullUnderWay>& pull,
                                   absl::StatusOr<wire::PullAnswer> answer) {
  const bool was_held = std::this_thread::get_id() != pull->asker || !pull->is_asking;
  if (!was_held) return Finish(*pull, std::move(answer));
  TraceInterval("hold pull of", TracedStep(pull->call), pull->held_ns,
                {"worker", pull->call.header.rank.value()});
  {
    absl::MutexLock lock(&mutex);
    pull->is_answered = true;
    if (pull->ticket != kNoTicket) held.erase(pull->ticket);
  }
  pull->threads->Run([this, pull, answer = std::move(answer)] {
    NameTraceThread("handle requests");
    pull->resumed_us = MonotonicMicros();
    Finish(*pull, answer);
  });
}

void CoreTransport::Impl::Finish(const PullUnderWay& pull,
                                 absl::StatusOr<wire::PullAnswer> answer) {
  const PullCall& call = pull.call;
  if (answer.ok() && answer->readiness == wire::Readiness::kReady) {
    const TraceSpan span("answer pull", TracedStep(call), {"worker", call.header.rank.value()});
    const absl::Status gathered = Gather(call);
    if (!gathered.ok()) answer = gathered;
  }
  if (!answer.ok()) answer = Explain(answer.status(), "Pull", call);
  MethodStats* const stats = call.kind == wire::PullKind::kRead ? options.reads : options.pulls;
  stats->End(answer.ok(), pull.handled_us + MonotonicMicros() - pull.resumed_us);
  pull.done(std::move(answer));
  End();
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
  (call.kind == wire::PullKind::kRead ? impl_->options.reads : impl_->options.pulls)->Begin();
  const auto pull = std::make_shared<PullUnderWay>(call, std::move(done));
  pull->threads = impl_->ThreadsOf(call);
  pull->threads->Run([impl = impl_.get(), pull, deadline_us] { impl->Ask(pull, deadline_us); });
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
