#include "deploy/controller/fan_out.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

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

// One that hasn't returned holds all up, the first as well as the last.
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
