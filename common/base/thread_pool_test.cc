#include "common/base/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
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

// Cells write without atomics, and their writes are visible when ParallelFor returns. Loops follow
// closely, so that some find the threads awake and some asleep.
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

// Loops of two cells on many threads: most wake when nothing is left, and must not touch the next
// loop's body, which is another object, before they have joined it.
TEST(ThreadPoolTest, ThreadsThatWakeLateJoinTheNextLoopOnly) {
  ThreadPool pool(8);
  for (int loop = 0; loop < 3000; ++loop) {
    std::vector<int> runs(2 + loop % 3, 0);
    pool.ParallelFor(static_cast<int64_t>(runs.size()), [&](int64_t cell, int) { ++runs[cell]; });
    ASSERT_EQ(runs, std::vector<int>(runs.size(), 1)) << "loop " << loop;
  }
}

TEST(HardwareThreads, IsAtLeastOne) { EXPECT_GE(HardwareThreads(), 1); }

// Each call waits for all others to begin: one after the other they would wait for ever.
TEST(CallAll, CallsAllAtOnceAndWaitsForThem) {
  constexpr size_t kCalls = 8;
  std::vector<int> calls(kCalls);
  absl::BlockingCounter begun(kCalls + 1);
  absl::Notification all_begun;
  std::atomic<bool> has_returned{false};
  std::thread caller([&] {
    CallAll(kCalls, [&](size_t i) {
      ++calls[i];
      begun.DecrementCount();
      all_begun.WaitForNotification();
    });
    has_returned = true;
  });
  EXPECT_FALSE(has_returned);
  begun.DecrementCount();
  begun.Wait();
  EXPECT_FALSE(has_returned);
  all_begun.Notify();
  caller.join();
  EXPECT_EQ(calls, std::vector<int>(kCalls, 1));
}

// CallAll waits for every call, the first as well as the last.
TEST(CallAll, WaitsForTheSlowest) {
  for (const size_t slow : {0, 1, 2}) {
    absl::Notification go_on;
    absl::BlockingCounter others(2);
    std::atomic<bool> has_returned{false};
    std::thread caller([&] {
      CallAll(3, [&](size_t i) {
        if (i == slow) {
          go_on.WaitForNotification();
        } else {
          others.DecrementCount();
        }
      });
      has_returned = true;
    });
    others.Wait();
    EXPECT_FALSE(has_returned);
    go_on.Notify();
    caller.join();
  }
}

TEST(CallAll, NoCallsHaveReturned) {
  CallAll(0, [](size_t) { FAIL(); });
}

TEST(CallAll, ReturnsWhenAllHave) {
  std::vector<size_t> squares(20);
  CallAll(squares.size(), [&](size_t i) { squares[i] = i * i; });
  for (size_t i = 0; i < squares.size(); ++i) EXPECT_EQ(squares[i], i * i);
}

}  // namespace
}  // namespace thermocline
