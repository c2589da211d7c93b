#include "common/base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "common/base/process_limits.h"
#include "common/base/task_queue.h"
#include "common/base/thread_pool.h"

namespace thermocline {
namespace {

// From here on no thread can be made: no address space has room for its stack.
void AllowNoMoreThreads() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{1} << 50);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
}

TEST(ThreadsTest, AThreadRunsItsBody) {
  int runs = 0;
  MakeThread([&runs] { ++runs; }).join();
  TryMakeThread([&runs] { ++runs; })->join();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(CheckThreads().ok());
}

TEST(ThreadsTest, WithoutAThreadTheProcessEndsWithTheReason) {
  const auto ended = testing::ExitedWithCode(kExitTrouble);
  EXPECT_EXIT(
      {
        AllowNoMoreThreads();
        MakeThread([] {});
      },
      ended, "failed: UNAVAILABLE: can't make a thread: .*ulimit");
  EXPECT_EXIT(
      {
        AllowNoMoreThreads();
        TaskQueue(1).Run([] {});
      },
      ended, "can't make a thread");
}

TEST(ThreadsTest, AProcessThatCanHaveFewThreadsOnlyIsTold) {
  EXPECT_EXIT(
      {
        AllowNoMoreThreads();
        const absl::Status checked = CheckThreads();
        std::fputs(checked.ToString().c_str(), stderr);
        std::_Exit(absl::IsUnavailable(checked) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "threads; after 0 it can't make a thread");
}

// Loops run on those that there are.
TEST(ThreadsTest, APoolHasTheThreadsThatCanBeMade) {
  EXPECT_EXIT(
      {
        AllowNoMoreThreads();
        int cells = 0;
        ThreadPool(8).ParallelFor(5, [&cells](int64_t, int) { ++cells; });
        std::_Exit(cells == 5 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace thermocline
