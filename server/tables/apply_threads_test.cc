#include "server/tables/apply_threads.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(ApplyThreadsTest, RunsEveryTaskOnce) {
  for (const int num_threads : {1, 2, 5}) {
    ApplyThreads threads(num_threads);
    EXPECT_EQ(threads.num_threads(), num_threads);
    for (size_t n = 0; n < 40; ++n) {
      std::vector<std::atomic<int>> runs(n);
      threads.Run(n, [&](size_t i) { ++runs[i]; });
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(runs[i], 1) << i << " of " << n;
    }
  }
}

TEST(ApplyThreadsTest, WhatTasksWroteIsSeenAfterRun) {
  ApplyThreads threads(4);
  std::vector<int> values(100);
  for (int round = 1; round <= 200; ++round) {
    threads.Run(values.size(), [&](size_t i) { values[i] += static_cast<int>(i); });
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], round * static_cast<int>(i));
    }
  }
}

TEST(ApplyThreadsTest, ThreadsThatNeverWorkedEnd) { ApplyThreads threads(8); }

}  // namespace
}  // namespace thermocline
