#include "common/base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/threads.h"
#include "common/base/trace.h"

namespace thermocline {
namespace {

// Longer than the gap between most loops of a step, shorter than two of the wake-ups that it saves,
// which take some 25 us each.
constexpr std::chrono::microseconds kSpinTime(15);
// So many looks between two looks at the clock, which takes as long as one of them.
constexpr int kLooks = 16;

// Waits for `done()` for kSpinTime at most, on the processor. Returns whether it has become true.
template <typename Done>
bool SpinUntil(Done done) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// ThreadPool::state_: how many threads are in the loop, whether more may join, the loop's number.
constexpr uint64_t kOneThread = 1;
constexpr uint64_t kThreads = (uint64_t{1} << 16) - 1;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kOneLoop = uint64_t{1} << 17;

bool IsOpen(uint64_t state) { return (state & kOpen) != 0; }
uint64_t NumberOf(uint64_t state) { return state / kOneLoop; }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  CHECK_LE(static_cast<uint64_t>(num_threads), kThreads);
  for (int thread = 1; thread < num_threads; ++thread) {
    std::optional<std::thread> made = TryMakeThread([this, thread] { WorkerLoop(thread); });
    if (!made.has_value()) break;
    threads_.push_back(*std::move(made));
  }
}

ThreadPool::~ThreadPool() {
  body_ = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    state_.fetch_add(kOneLoop + kOpen, std::memory_order_release);
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t num_cells, Body body) {
  if (num_cells <= 0) return;
  if (threads_.empty() || num_cells == 1) {
    for (int64_t cell = 0; cell < num_cells; ++cell) body(cell, 0);
    return;
  }
  body_ = &body;
  num_cells_ = num_cells;
  next_cell_.store(0, std::memory_order_relaxed);
  {
    absl::MutexLock lock(&mutex_);
    state_.fetch_add(kOneLoop + kOpen, std::memory_order_release);
    for (int64_t i = std::min<int64_t>(sleepers_, num_cells - 1); i > 0; --i) work_.Signal();
  }
  RunCells(body, 0);
  if ((state_.fetch_sub(kOpen, std::memory_order_acq_rel) & kThreads) == 0) return;
  const auto is_left = [this] { return (state_.load(std::memory_order_acquire) & kThreads) == 0; };
  if (SpinUntil(is_left)) return;
  absl::MutexLock lock(&mutex_);
  while (!is_left()) done_.Wait(&mutex_);
}

void ThreadPool::RunCells(const Body& body, int thread) {
  for (;;) {
    const int64_t cell = next_cell_.fetch_add(1, std::memory_order_relaxed);
    if (cell >= num_cells_) return;
    body(cell, thread);
  }
}

bool ThreadPool::HasWork(uint64_t seen) const {
  const uint64_t state = state_.load(std::memory_order_relaxed);
  return IsOpen(state) && NumberOf(state) != seen;
}

bool ThreadPool::TryJoin(uint64_t* seen) {
  uint64_t state = state_.load(std::memory_order_relaxed);
  while (IsOpen(state) && NumberOf(state) != *seen) {
    if (!state_.compare_exchange_weak(state, state + kOneThread, std::memory_order_acquire)) {
      continue;
    }
    *seen = NumberOf(state);
    return true;
  }
  return false;
}

uint64_t ThreadPool::JoinNext(uint64_t seen) {
  for (;;) {
    if (SpinUntil([&] { return TryJoin(&seen); })) return seen;
    absl::MutexLock lock(&mutex_);
    ++sleepers_;
    while (!HasWork(seen)) work_.Wait(&mutex_);
    --sleepers_;
  }
}

void ThreadPool::WorkerLoop(int thread) {
  NameTraceThread("pool");
  for (uint64_t loop = 0;;) {
    loop = JoinNext(loop);
    if (body_ == nullptr) return;
    {
      const TraceSpan span("parallel loop");
      RunCells(*body_, thread);
    }
    const uint64_t state = state_.fetch_sub(kOneThread, std::memory_order_acq_rel) - kOneThread;
    if ((state & kThreads) != 0 || IsOpen(state)) continue;
    absl::MutexLock lock(&mutex_);  // The caller looks, then waits, under it.
    done_.Signal();
  }
}

int HardwareThreads() {
  // hardware_concurrency() may return 0.
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void CallAll(size_t count, absl::FunctionRef<void(size_t index)> call) {
  if (count == 0) return;
  ThreadPool(static_cast<int>(count)).ParallelFor(static_cast<int64_t>(count), [&](int64_t i, int) {
    call(static_cast<size_t>(i));
  });
}

}  // namespace thermocline
