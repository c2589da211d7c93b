// Threads that run the cells of a grid and sleep in between.
#ifndef THERMOCLINE_COMMON_BASE_THREAD_POOL_H_
#define THERMOCLINE_COMMON_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// A waiting thread looks for work for a few microseconds, then sleeps: a server shares the cores.
//
// Not thread-safe: one thread at a time calls ParallelFor.
class ThreadPool {
 public:
  // `num_threads` includes the one that calls ParallelFor. REQUIRES: num_threads >= 1
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body(cell, thread) once for every cell in [0, num_cells), each on some thread in
  // [0, num_threads()), and returns when all have run. Cells start in ascending order.
  using Body = absl::FunctionRef<void(int64_t cell, int thread)>;
  void ParallelFor(int64_t num_cells, Body body);

 private:
  void WorkerLoop(int thread);
  void RunCells(const Body& body, int thread);
  // Waits until `generation_` differs from `seen` and returns it.
  int64_t AwaitWork(int64_t seen);

  std::vector<std::thread> threads_;  // Constant after construction.

  // The job under way. Written by ParallelFor while every worker is idle.
  const Body* body_ = nullptr;  // null: the pool ends
  int64_t num_cells_ = 0;
  std::atomic<int64_t> next_cell_{0};
  std::atomic<int> busy_workers_{0};
  std::atomic<int64_t> generation_{0};  // Rises with every job.

  absl::Mutex mutex_;  // Only to sleep and wake.
  absl::CondVar work_or_done_;
  int sleepers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_THREAD_POOL_H_
