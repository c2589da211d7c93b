#include "deploy/controller/fan_out.h"

#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

// Each call waits for all others to begin: one after the other they would wait for ever.
TEST(FanOut, CallsAllAtOnceAndWaitsForThem) {
  constexpr size_t kCalls = 8;
  std::vector<int> calls(kCalls);
  absl::BlockingCounter begun(kCalls + 1);
  absl::Notification all_begun;
  {
    const FanOut fan_out(kCalls, [&](size_t i) {
      ++calls[i];
      begun.DecrementCount();
      all_begun.WaitForNotification();
    });
    EXPECT_FALSE(fan_out.AllReturned());
    begun.DecrementCount();
    begun.Wait();
    EXPECT_FALSE(fan_out.AllReturned());
    all_begun.Notify();
  }
  EXPECT_EQ(calls, std::vector<int>(kCalls, 1));
}

// One that hasn't returned holds all up, the first as well as the last.
TEST(FanOut, SaysWhenAllHaveReturned) {
  for (const size_t slow : {0, 1, 2}) {
    absl::Notification go_on;
    absl::BlockingCounter others(2);
    const FanOut fan_out(3, [&](size_t i) {
      if (i == slow) {
        go_on.WaitForNotification();
      } else {
        others.DecrementCount();
      }
    });
    others.Wait();
    EXPECT_FALSE(fan_out.AllReturned());
    go_on.Notify();
    while (!fan_out.AllReturned()) std::this_thread::yield();  // As a supervisor's waits do.
  }
}

TEST(FanOut, NoCallsHaveReturned) {
  const auto never = [](size_t) { FAIL(); };
  EXPECT_TRUE(FanOut(0, never).AllReturned());
  CallAll(0, never);
}

TEST(FanOut, CallAllReturnsWhenAllHave) {
  std::vector<size_t> squares(20);
  CallAll(squares.size(), [&](size_t i) { squares[i] = i * i; });
  for (size_t i = 0; i < squares.size(); ++i) EXPECT_EQ(squares[i], i * i);
}

}  // namespace
}  // namespace thermocline
