#include "common/base/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"

namespace thermocline {
namespace {

constexpr int64_t kNever = int64_t{1} << 40;  // two weeks

TEST(ThreadSchedulerTest, RunsTasksByDueTimeThenInTheOrderTheyCame) {
  ThreadScheduler scheduler;
  std::vector<int> order;  // written by the scheduler's one thread
  absl::Notification blocked, release, done;
  // Holds the thread, so that the others are all queued before the first of them may run.
  scheduler.RunAfter(0, [&] {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  scheduler.RunAfter(30000, [&] {
    order.push_back(4);
    done.Notify();
  });
  scheduler.RunAfter(20000, [&] { order.push_back(3); });
  scheduler.RunAfter(-1000000, [&] { order.push_back(0); });
  scheduler.RunAfter(0, [&] { order.push_back(1); });
  scheduler.RunAfter(0, [&] { order.push_back(2); });
  release.Notify();
  done.WaitForNotification();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(ThreadSchedulerTest, NeverRunsATaskEarly) {
  ThreadScheduler scheduler;
  for (int64_t delay_us : {0, 100, 5000}) {
    absl::Notification done;
    const int64_t queued_us = scheduler.NowMicros();
    int64_t ran_us = 0;
    scheduler.RunAfter(delay_us, [&] {
      ran_us = scheduler.NowMicros();
      done.Notify();
    });
    done.WaitForNotification();
    EXPECT_GE(ran_us - queued_us, delay_us);
  }
}

TEST(ThreadSchedulerTest, ATaskThatIsDueSoonerWakesTheThread) {
  ThreadScheduler scheduler;
  scheduler.RunAfter(kNever, [] { FAIL() << "ran two weeks early"; });
  absl::Notification done;
  scheduler.RunAfter(100, [&] { done.Notify(); });
  done.WaitForNotification();
}

TEST(ThreadSchedulerTest, TasksMayScheduleTasks) {
  ThreadScheduler scheduler;
  absl::Notification done;
  int runs = 0;
  std::function<void()> again = [&] {
    if (++runs == 100) {
      done.Notify();
    } else {
      scheduler.RunAfter(0, again);
    }
  };
  scheduler.RunAfter(0, again);
  done.WaitForNotification();
  EXPECT_EQ(runs, 100);
}

TEST(ThreadSchedulerTest, DestructionDropsWhatHasNotStarted) {
  auto captured = std::make_shared<int>(0);
  bool ran = false;
  {
    ThreadScheduler scheduler;
    for (int i = 0; i < 10; ++i) {
      scheduler.RunAfter(kNever, [&ran, captured] { ran = true; });
    }
    EXPECT_EQ(captured.use_count(), 11);
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(ThreadSchedulerTest, DestructionWaitsForTheTaskThatRuns) {
  auto scheduler = std::make_unique<ThreadScheduler>();
  absl::Notification started, release;
  bool finished = false;
  scheduler->RunAfter(0, [&] {
    started.Notify();
    release.WaitForNotification();
    finished = true;
  });
  started.WaitForNotification();
  std::thread releaser([&] { release.Notify(); });
  scheduler.reset();
  EXPECT_TRUE(finished);
  releaser.join();
}

TEST(ThreadSchedulerTest, ATaskIsDestroyedOnceItRan) {
  ThreadScheduler scheduler;
  auto captured = std::make_shared<int>(0);
  scheduler.RunAfter(0, [captured] {});
  absl::Notification done;
  scheduler.RunAfter(0, [&] { done.Notify(); });
  done.WaitForNotification();
  EXPECT_EQ(captured.use_count(), 1);
}

}  // namespace
}  // namespace thermocline
