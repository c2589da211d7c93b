// Threads that share the iterations ("cells") of a loop, and sleep between loops. Tasks in the
// background belong to common/base/task_queue.h, timers to common/base/scheduler.h.
#ifndef THERMOCLINE_COMMON_BASE_THREAD_POOL_H_
#define THERMOCLINE_COMMON_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// A waiting thread spins for 15 microseconds, then sleeps, since other processes need the cores.
//
// Not thread-safe: one thread at a time calls ParallelFor. The destructor ends the threads; no
// ParallelFor may run then.
class ThreadPool {
 public:
  // `num_threads` includes the one that calls ParallelFor. The pool has fewer where the system
  // makes no more. REQUIRES: num_threads >= 1
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body(cell, thread) once for every cell in [0, num_cells), each on some thread in
  // [0, num_threads()), and returns when all have run. Cells start in ascending order. It does not
  // wait for threads that wake when no cell is left.
  using Body = absl::FunctionRef<void(int64_t cell, int thread)>;
  void ParallelFor(int64_t num_cells, Body body);

 private:
  void WorkerLoop(int thread);
  void RunCells(const Body& body, int thread);
  // Waits for a loop other than number `seen`, joins it, and returns its number.
  uint64_t JoinNext(uint64_t seen);
  // Joins the loop under way, unless it is number `*seen`, and sets *seen to its number. Returns
  // whether it has joined.
  bool TryJoin(uint64_t* seen);
  bool HasWork(uint64_t seen) const;

  std::vector<std::thread> threads_;  // Constant after construction.

  // The loop under way. ParallelFor writes these while no thread has joined.
  const Body* body_ = nullptr;  // null: the pool ends
  int64_t num_cells_ = 0;
  std::atomic<int64_t> next_cell_{0};
  // The loop's number, whether threads may join it, and how many are in it (thread_pool.cc).
  std::atomic<uint64_t> state_{0};

  absl::Mutex mutex_;  // Only to sleep and wake.
  absl::CondVar work_;
  absl::CondVar done_;
  int sleepers_ ABSL_GUARDED_BY(mutex_) = 0;  // Threads that wait for work.
};

// How many threads the machine runs at a time; 1 where the system does not say.
int HardwareThreads();

// Runs call(i) for each i in [0, count) at once, each on a thread of its own, and returns when all
// have returned. It serves calls that wait, for other processes for instance.
// REQUIRES: `call` is thread-safe and returns in bounded time.
void CallAll(size_t count, absl::FunctionRef<void(size_t index)> call);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_THREAD_POOL_H_
