#include "worker/exchange/exchange.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "worker/exchange/all_to_all.h"

namespace thermocline {
namespace {

constexpr int64_t kWaitingIntervalUs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// [phases] In traces.
using SpanNames = std::array<const char*, kNumPhases>;
constexpr SpanNames kAwaitSpans = {
    "wait for keys",      "wait for plans",           "wait for rows of ranks",
    "wait for gradients", "wait for dense gradients", "wait for dense weights"};
constexpr SpanNames kSendSpans = {"send keys",      "send plans",           "send rows",
                                  "send gradients", "send dense gradients", "send dense weights"};
constexpr SpanNames kReceiveSpans = {
    "receive keys",      "receive plans",           "receive rows",
    "receive gradients", "receive dense gradients", "receive dense weights"};

}  // namespace

struct Exchange::Impl final : ExchangeEvents, std::enable_shared_from_this<Impl> {
  Impl(const ExchangeOptions& exchange_options, ExchangeHooks a_hooks,
       std::unique_ptr<ExchangeTransport> a_transport, Scheduler* a_scheduler)
      : options(exchange_options),
        hooks(std::move(a_hooks)),
        transport(std::move(a_transport)),
        scheduler(a_scheduler),
        machine(options, scheduler->NowMicros()) {}

  void OnReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) override;
  void OnSent(WorkerRank to, uint64_t attempt) override;
  void OnClosed(WorkerRank to, uint64_t attempt, const absl::Status& why) override;
  void OnOpened(WorkerRank from, uint64_t attempt) override;
  void OnChunk(WorkerRank from, uint64_t attempt, const BlockChunk& chunk) override;

  // Decisions that are made under the mutex, and carried out after it is released.
  struct Todo {
    std::vector<ExchangeAction> actions;
    absl::Status failure;         // OK: there is none, or it was reported before.
    int64_t tick_at_us = kNever;  // The next tick, to be scheduled.
    bool is_waiting_due = false;  // Whether to schedule the tick for hooks.on_waiting.
  };
  Todo Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CarryOut(const Todo& todo) ABSL_LOCKS_EXCLUDED(mutex);
  void CarryOut(const ExchangeAction& action);
  // Changes the machine, then carries out its actions.
  template <typename Change>
  void Apply(Change change) ABSL_LOCKS_EXCLUDED(mutex) {
    Todo todo;
    {
      absl::MutexLock lock(&mutex);
      change(&machine);
      todo = Take();
    }
    CarryOut(todo);
  }
  void Tick();
  void OnTimer(int64_t at_us);
  void OnWaitingTick();
  // Runs the hook, unless the exchange is being destroyed.
  template <typename... Args>
  void CallHook(const std::function<void(Args...)>& hook,
                const std::remove_reference_t<Args>&... args) ABSL_LOCKS_EXCLUDED(mutex);

  absl::Status Await(BlockId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status StatusNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    if (!machine.failure().ok()) return machine.failure();
    return is_stopped ? absl::CancelledError("the exchange between workers is stopped")
                      : absl::OkStatus();
  }

  bool IsWaiting() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return machine.is_waiting() && StatusNow().ok();
  }

  const ExchangeOptions options;
  const ExchangeHooks hooks;
  const std::unique_ptr<ExchangeTransport> transport;
  Scheduler* const scheduler;

  mutable absl::Mutex mutex;
  AllToAll machine ABSL_GUARDED_BY(mutex);
  bool is_stopped ABSL_GUARDED_BY(mutex) = false;
  bool is_failure_reported ABSL_GUARDED_BY(mutex) = false;
  bool is_over ABSL_GUARDED_BY(mutex) = false;  // From now on no hook is called.
  int hooks_running ABSL_GUARDED_BY(mutex) = 0;
  bool has_waiting_tick ABSL_GUARDED_BY(mutex) = false;
  int64_t tick_at_us ABSL_GUARDED_BY(mutex) = kNever;  // The next tick; other timers do nothing.
};

Exchange::Impl::Todo Exchange::Impl::Take() {
  Todo todo;
  todo.actions = machine.TakeActions();
  if (!machine.failure().ok() && !is_failure_reported) {
    is_failure_reported = true;
    todo.failure = machine.failure();
  }
  const int64_t next_us = machine.next_tick_us();
  if (next_us < tick_at_us) {
    tick_at_us = todo.tick_at_us = next_us;
  }
  if (IsWaiting() && !has_waiting_tick && hooks.on_waiting) {
    has_waiting_tick = todo.is_waiting_due = true;
  }
  return todo;
}

void Exchange::Impl::CarryOut(const Todo& todo) {
  for (const ExchangeAction& action : todo.actions) CarryOut(action);
  const auto after = [this](int64_t delay_us, std::function<void(Impl*)> then) {
    scheduler->RunAfter(delay_us, [weak = weak_from_this(), then = std::move(then)] {
      if (const std::shared_ptr<Impl> self = weak.lock()) then(self.get());
    });
  };
  if (todo.tick_at_us != kNever) {
    after(std::max<int64_t>(0, todo.tick_at_us - scheduler->NowMicros()),
          [at_us = todo.tick_at_us](Impl* self) { self->OnTimer(at_us); });
  }
  if (todo.is_waiting_due) after(kWaitingIntervalUs, [](Impl* self) { self->OnWaitingTick(); });
  if (!todo.failure.ok()) CallHook(hooks.on_failure, todo.failure);
}

void Exchange::Impl::CarryOut(const ExchangeAction& action) {
  if (const auto* open = std::get_if<exchange_action::OpenStream>(&action)) {
    transport->Open(open->to, open->attempt);
  } else if (const auto* chunk = std::get_if<exchange_action::SendChunk>(&action)) {
    const TraceSpan span(kSendSpans[IndexOf(chunk->chunk.id.phase)], chunk->chunk.id.step,
                         {"worker", chunk->to.value()});
    transport->Send(chunk->to, chunk->attempt, chunk->chunk, chunk->bytes);
  } else if (const auto* receipt = std::get_if<exchange_action::SendReceipt>(&action)) {
    transport->SendReceipt(receipt->to, receipt->attempt, receipt->receipt);
  } else {
    CallHook(hooks.on_notice, Describe(std::get<exchange_action::Complain>(action).wait));
  }
}

template <typename... Args>
void Exchange::Impl::CallHook(const std::function<void(Args...)>& hook,
                              const std::remove_reference_t<Args>&... args) {
  if (!hook) return;
  {
    absl::MutexLock lock(&mutex);
    if (is_over) return;
    ++hooks_running;
  }
  hook(args...);
  absl::MutexLock lock(&mutex);
  --hooks_running;
}

// Does nothing if a timer for an earlier tick has been started since. Otherwise there would be ever
// more timers.
void Exchange::Impl::OnTimer(int64_t at_us) {
  {
    absl::MutexLock lock(&mutex);
    if (tick_at_us != at_us) return;
  }
  Tick();
}

void Exchange::Impl::Tick() {
  Todo todo;
  {
    absl::MutexLock lock(&mutex);
    tick_at_us = kNever;
    machine.OnTick(scheduler->NowMicros());
    todo = Take();
  }
  CarryOut(todo);
}

void Exchange::Impl::OnWaitingTick() {
  Todo todo;
  bool waits = false;
  {
    absl::MutexLock lock(&mutex);
    has_waiting_tick = false;
    waits = IsWaiting();
    todo = Take();
  }
  if (waits) CallHook(hooks.on_waiting);
  CarryOut(todo);
}

void Exchange::Impl::OnReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) {
  Apply([&](AllToAll* all) { all->OnReceipt(scheduler->NowMicros(), to, attempt, receipt); });
}

void Exchange::Impl::OnSent(WorkerRank to, uint64_t attempt) {
  Apply([&](AllToAll* all) { all->OnSent(to, attempt); });
}

void Exchange::Impl::OnClosed(WorkerRank to, uint64_t attempt, const absl::Status& why) {
  Apply([&](AllToAll* all) { all->OnClosed(scheduler->NowMicros(), to, attempt, why); });
}

void Exchange::Impl::OnOpened(WorkerRank from, uint64_t attempt) {
  Apply([&](AllToAll* all) { all->OnOpened(scheduler->NowMicros(), from, attempt); });
}

void Exchange::Impl::OnChunk(WorkerRank from, uint64_t attempt, const BlockChunk& chunk) {
  NameTraceThread("gRPC");
  const TraceSpan span(kReceiveSpans[IndexOf(chunk.id.phase)], chunk.id.step,
                       {"worker", from.value()});
  Apply([&](AllToAll* all) { all->OnChunk(scheduler->NowMicros(), from, attempt, chunk); });
}

// Releases the mutex while it waits, and while it carries out the machine's actions.
absl::Status Exchange::Impl::Await(BlockId id) {
  RETURN_IF_ERROR(StatusNow());
  if (machine.Await(scheduler->NowMicros(), id)) return absl::OkStatus();
  const TraceSpan span(kAwaitSpans[IndexOf(id.phase)], id.step);
  const Todo todo = Take();
  mutex.Unlock();
  CarryOut(todo);
  mutex.Lock();
  const auto is_over = [this, id]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return machine.IsComplete(id) || !StatusNow().ok();
  };
  mutex.Await(absl::Condition(&is_over));
  RETURN_IF_ERROR(StatusNow());
  CHECK(machine.Await(scheduler->NowMicros(), id));
  return absl::OkStatus();
}

ReceivedBlocks& ReceivedBlocks::operator=(ReceivedBlocks&& other) noexcept {
  if (this == &other) return *this;
  Release();
  bytes_ = std::exchange(other.bytes_, {});
  release_ = std::exchange(other.release_, nullptr);
  return *this;
}

void ReceivedBlocks::Release() {
  bytes_.clear();
  if (const std::function<void()> release = std::exchange(release_, nullptr)) release();
}

Exchange::Exchange(const ExchangeOptions& options, ExchangeHooks hooks,
                   std::unique_ptr<ExchangeTransport> transport, Scheduler* scheduler)
    : impl_(std::make_shared<Impl>(options, std::move(hooks), std::move(transport), scheduler)) {
  impl_->transport->Start(impl_.get());
  impl_->Tick();  // Opens the streams.
}

Exchange::~Exchange() {
  Stop();
  impl_->transport->Close();
  // A timer's task may still run.
  absl::MutexLock lock(&impl_->mutex);
  impl_->is_over = true;
  const auto is_quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex) {
    return impl_->hooks_running == 0;
  };
  impl_->mutex.Await(absl::Condition(&is_quiet));
}

WorkerRank Exchange::rank() const { return impl_->options.rank; }
uint32_t Exchange::num_ranks() const { return impl_->options.num_ranks; }
const ExchangeOptions& Exchange::options() const { return impl_->options; }

absl::Status Exchange::Post(BlockId id, std::vector<Block> to_ranks) {
  Impl::Todo todo;
  absl::Status status;
  {
    absl::MutexLock lock(&impl_->mutex);
    status = impl_->StatusNow();
    if (status.ok()) status = impl_->machine.Post(id, std::move(to_ranks));
    todo = impl_->Take();
  }
  impl_->CarryOut(todo);
  return status;
}

absl::Status Exchange::PostEnd(Step step, const absl::Status& why) {
  const std::string text = why.ToString();
  const auto bytes = why.ok() ? std::make_shared<BlockBytes>()
                              : std::make_shared<BlockBytes>(text.begin(), text.end());
  const Block block{why.ok() ? BlockKind::kEnd : BlockKind::kFailed, bytes};
  return Post({step, Phase::kKeys}, std::vector<Block>(num_ranks(), block));
}

absl::StatusOr<ReceivedBlocks> Exchange::Receive(BlockId id) {
  ReceivedBlocks received;
  {
    absl::MutexLock lock(&impl_->mutex);
    RETURN_IF_ERROR(impl_->Await(id));
    for (const Block* block : impl_->machine.BlocksOf(id)) {
      received.bytes_.push_back(block->bytes);
    }
  }
  received.release_ = [impl = impl_, id] {
    impl->Apply([id](AllToAll* all) { all->Release(id); });
  };
  return received;
}

absl::Status Exchange::Await(BlockId id) {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->Await(id);
}

absl::StatusOr<bool> Exchange::HasStep(Step step) {
  absl::MutexLock lock(&impl_->mutex);
  RETURN_IF_ERROR(impl_->Await({step, Phase::kKeys}));
  return impl_->machine.HasStep(step);
}

void Exchange::NotePushed(Step step) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->machine.NotePushed(step);
}

absl::Status Exchange::CheckOwesNothing() {
  impl_->Apply([](AllToAll* all) { all->CheckOwesNothing(); });
  return status();
}

bool Exchange::BeginWait(BlockId id) {
  Impl::Todo todo;
  bool is_over = false;
  {
    absl::MutexLock lock(&impl_->mutex);
    is_over = impl_->StatusNow().ok() && impl_->machine.Await(impl_->scheduler->NowMicros(), id);
    todo = impl_->Take();
  }
  impl_->CarryOut(todo);
  return is_over;
}

void Exchange::Stop() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->is_stopped = true;
}

void Exchange::Fail(const absl::Status& why) {
  CHECK(!why.ok());
  impl_->Apply([&](AllToAll* all) { all->Fail(why); });
}

absl::Status Exchange::status() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->StatusNow();
}

void Exchange::Flush(absl::Duration patience) {
  absl::MutexLock lock(&impl_->mutex);
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(impl_->mutex) {
    return impl_->machine.MayLeave() || !impl_->StatusNow().ok();
  };
  impl_->mutex.AwaitWithTimeout(absl::Condition(&is_over), patience);
}

absl::Status Exchange::Leave(const std::function<void(Done done)>& ask_applied) {
  // Each call has an object of its own, since the answer may come after the call has returned.
  struct Answer {
    bool is_here = false;
    absl::Status status;
  };
  const auto answer = std::make_shared<Answer>();
  Impl::Todo todo;
  bool may_leave = false;
  {
    absl::MutexLock lock(&impl_->mutex);
    may_leave = impl_->machine.MayLeave();
  }
  if (!may_leave) {
    ask_applied([impl = impl_, answer](absl::Status status) {
      absl::MutexLock lock(&impl->mutex);
      answer->is_here = true;
      answer->status = std::move(status);
    });
  }
  {
    absl::MutexLock lock(&impl_->mutex);
    const auto is_over = [this, &answer]() ABSL_SHARED_LOCKS_REQUIRED(impl_->mutex) {
      return impl_->machine.MayLeave() || answer->is_here || !impl_->machine.failure().ok();
    };
    impl_->mutex.Await(absl::Condition(&is_over));
    if (!impl_->machine.MayLeave()) {
      RETURN_IF_ERROR(impl_->machine.failure());
      RETURN_IF_ERROR(answer->status);
    }
    impl_->machine.Finish();
    impl_->is_stopped = true;
    todo = impl_->Take();
  }
  impl_->CarryOut(todo);
  impl_->transport->Close();
  return absl::OkStatus();
}

std::vector<ExchangeWait> Exchange::waits() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->machine.waits(impl_->scheduler->NowMicros());
}

void Exchange::FillStats(ExchangeStats* stats) const {
  ExchangeCounts counts;
  {
    absl::MutexLock lock(&impl_->mutex);
    counts = impl_->machine.counts();
  }
  stats->Clear();
  for (size_t p = 0; p < kNumPhases; ++p) {
    if (!impl_->options.phases.Has(static_cast<Phase>(p))) continue;
    ExchangeStats::PhaseStats* const phase = stats->add_phases();
    phase->set_name(std::string(kPhaseNames[p]));
    phase->set_bytes_sent(counts.bytes_sent[p]);
    phase->set_bytes_received(counts.bytes_received[p]);
    phase->set_wait_s(counts.wait_us[p] * 1e-6);
  }
  stats->set_bytes_sent_again(counts.bytes_sent_again);
  stats->set_streams_opened(counts.streams_opened);
  stats->set_bytes_owed(counts.bytes_owed);
  stats->set_bytes_held(counts.bytes_held);
  for (const int64_t us : counts.wait_for_rank_us) stats->add_wait_for_rank_s(us * 1e-6);
}

std::string Describe(const ExchangeWait& wait) {
  const std::string stream =
      wait.stream.ok() ? ""
                       : absl::StrCat("; the last stream to it ended: ", wait.stream.ToString());
  return absl::StrFormat("has waited %.1f s for %s from rank %d; nothing came from it for %.1f s%s",
                         wait.waited_us * 1e-6, Describe(wait.missing), wait.about.value(),
                         wait.silent_us * 1e-6, stream);
}

void FillWait(const ExchangeWait& wait, WorkerWait* to) {
  constexpr std::array<WorkerWait::Kind, kNumPhases> kKinds = {
      WorkerWait::KEYS,      WorkerWait::PLANS,           WorkerWait::ROWS,
      WorkerWait::GRADIENTS, WorkerWait::DENSE_GRADIENTS, WorkerWait::DENSE_WEIGHTS};
  to->set_worker(wait.about.value());
  to->set_kind(kKinds[static_cast<size_t>(wait.missing.phase)]);
  to->set_step(wait.missing.step.value());
  to->set_needed_step(wait.needed_for.step.value());
  to->set_seconds(wait.waited_us * 1e-6);
  to->set_last_error(std::string(wait.stream.message()));
}

}  // namespace thermocline
