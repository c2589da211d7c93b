#include "common/base/task_queue.h"

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(TaskQueueTest, OneThreadRunsTasksInTheOrderInWhichTheyCame) {
  // Only the queue's one thread writes `order`; this thread reads it once the queue is gone.
  std::vector<int> order, expected;
  {
    TaskQueue queue(1);
    for (int i = 0; i < 100; ++i) {
      expected.push_back(i);
      queue.Run([&order, i] { order.push_back(i); });
    }
  }
  EXPECT_EQ(order, expected);
}

// Each task waits for the other two: with fewer threads none would end.
TEST(TaskQueueTest, ThreadsStartWhileTasksWait) {
  TaskQueue queue(3);
  for (int round = 0; round < 20; ++round) {
    auto* all_here = new absl::Barrier(3);
    for (int i = 0; i < 3; ++i) {
      queue.Run([all_here] {
        if (all_here->Block()) delete all_here;
      });
    }
  }
}

TEST(TaskQueueTest, NoMoreThreadsThanAllowedRunTasks) {
  std::atomic<int> running{0}, most{0};
  {
    TaskQueue queue(2);
    for (int i = 0; i < 200; ++i) {
      queue.Run([&] {
        const int now = ++running;
        if (now > most) most = now;
        --running;
      });
    }
  }
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 2);
}

TEST(TaskQueueTest, IdleMeansThatAllHaveRunAndAreDestroyed) {
  TaskQueue queue(4);
  queue.AwaitIdle();
  auto captured = std::make_shared<std::atomic<int>>(0);
  for (int round = 1; round <= 50; ++round) {
    for (int i = 0; i < 10; ++i) queue.Run([captured] { ++*captured; });
    queue.AwaitIdle();
    ASSERT_EQ(*captured, round * 10);
    ASSERT_EQ(captured.use_count(), 1);
  }
}

TEST(TaskQueueTest, DestructionRunsWhatTasksStillGive) {
  int runs = 0;  // One task at a time changes it.
  absl::Notification started, release;
  {
    auto queue = std::make_unique<TaskQueue>(4);
    TaskQueue* const tasks = queue.get();
    std::function<void()> again = [&] {
      if (++runs < 100) tasks->Run(again);
    };
    queue->Run([&] {
      started.Notify();
      release.WaitForNotification();
      again();
    });
    started.WaitForNotification();
    std::thread releaser([&] { release.Notify(); });
    queue.reset();
    releaser.join();
  }
  EXPECT_EQ(runs, 100);
}

TEST(TaskQueueTest, EndsWithoutATask) { TaskQueue queue(8); }

}  // namespace
}  // namespace thermocline
