#include "common/base/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(ThreadPoolTest, EveryCellRunsOnce) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t cells : {0, 1, 2, 3, 17, 1000}) {
      std::vector<std::atomic<int>> runs(cells);
      std::atomic<bool> threads_in_range{true};
      pool.ParallelFor(cells, [&](int64_t cell, int thread) {
        runs[cell].fetch_add(1);
        if (thread < 0 || thread >= threads) threads_in_range = false;
      });
      for (int64_t cell = 0; cell < cells; ++cell) {
        ASSERT_EQ(runs[cell].load(), 1) << "cell " << cell << " of " << cells;
      }
      EXPECT_TRUE(threads_in_range);
    }
  }
}

// What a job wrote is there when ParallelFor returns, without atomics; jobs follow closely, so
// that some find the workers awake and some asleep.
TEST(ThreadPoolTest, JobsSeeWhatEarlierOnesWrote) {
  ThreadPool pool(3);
  std::vector<int64_t> values(37, 0);
  for (int job = 0; job < 3000; ++job) {
    pool.ParallelFor(37, [&](int64_t cell, int) { values[cell] += cell; });
    if (job % 100 == 0) std::this_thread::yield();
  }
  for (int64_t cell = 0; cell < 37; ++cell) EXPECT_EQ(values[cell], 3000 * cell);
}

TEST(ThreadPoolTest, CellsRunAtTheSameTime) {
  ThreadPool pool(4);
  absl::Barrier* all_here = new absl::Barrier(4);  // Passes only when four cells wait in it.
  pool.ParallelFor(4, [&](int64_t, int) {
    if (all_here->Block()) delete all_here;
  });
}

TEST(ThreadPoolTest, EndsWithoutAJob) { ThreadPool pool(4); }

}  // namespace
}  // namespace thermocline
