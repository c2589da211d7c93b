#include "common/base/thread_pool.h"

#include <immintrin.h>

#include "common/base/check.h"

namespace thermocline {
namespace {

// About 3 us: longer than the gap between two operations, far shorter than a step.
constexpr int kSpins = 64;

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    threads_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  body_ = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    work_or_done_.SignalAll();
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
  busy_workers_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  {
    absl::MutexLock lock(&mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    if (sleepers_ > 0) work_or_done_.SignalAll();
  }
  RunCells(body, 0);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (busy_workers_.load(std::memory_order_acquire) == 0) return;
    _mm_pause();
  }
  absl::MutexLock lock(&mutex_);
  ++sleepers_;
  while (busy_workers_.load(std::memory_order_acquire) != 0) work_or_done_.Wait(&mutex_);
  --sleepers_;
}

void ThreadPool::RunCells(const Body& body, int thread) {
  for (;;) {
    const int64_t cell = next_cell_.fetch_add(1, std::memory_order_relaxed);
    if (cell >= num_cells_) return;
    body(cell, thread);
  }
}

int64_t ThreadPool::AwaitWork(int64_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const int64_t generation = generation_.load(std::memory_order_acquire);
    if (generation != seen) return generation;
    _mm_pause();
  }
  absl::MutexLock lock(&mutex_);
  ++sleepers_;
  int64_t generation;
  while ((generation = generation_.load(std::memory_order_acquire)) == seen) {
    work_or_done_.Wait(&mutex_);
  }
  --sleepers_;
  return generation;
}

void ThreadPool::WorkerLoop(int thread) {
  for (int64_t generation = 0;;) {
    generation = AwaitWork(generation);
    if (body_ == nullptr) return;
    RunCells(*body_, thread);
    if (busy_workers_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      absl::MutexLock lock(&mutex_);
      if (sleepers_ > 0) work_or_done_.SignalAll();
    }
  }
}

}  // namespace thermocline
