#include "server/core/held_pulls.h"

#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

HeldPull Pull(int64_t step, int64_t expires_us) {
  HeldPull pull;
  pull.step = Step(step);
  pull.expires_us = expires_us;
  return pull;
}

std::vector<int64_t> StepsOf(const std::vector<HeldPull>& pulls) {
  std::vector<int64_t> steps;
  for (const HeldPull& pull : pulls) steps.push_back(pull.step.value());
  return steps;
}

TEST(HeldPullsTest, TakesReadyOnesInTheOrderTheyCame) {
  HeldPulls held(10);
  for (const int64_t step : {3, 1, 4, 2}) held.Hold(Pull(step, 100 - step));
  const auto even = held.TakeReady([](const HeldPull& p) { return p.step.value() % 2 == 0; });
  EXPECT_EQ(StepsOf(even), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(StepsOf(held.TakeAll()), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(held.size(), 0u);
}

TEST(HeldPullsTest, EachExpiresAtItsOwnTime) {
  HeldPulls held(10);
  held.Hold(Pull(1, 160));
  held.Hold(Pull(2, 105));
  held.Hold(Pull(3, 105));
  EXPECT_EQ(held.next_expiry_us(), 105);
  EXPECT_TRUE(held.TakeExpired(104).empty());
  EXPECT_EQ(StepsOf(held.TakeExpired(105)), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(held.next_expiry_us(), 160);
  EXPECT_EQ(StepsOf(held.TakeExpired(1000)), (std::vector<int64_t>{1}));
  EXPECT_TRUE(held.TakeExpired(1000).empty());
}

TEST(HeldPullsTest, ATicketTakesItsPullOnce) {
  HeldPulls held(10);
  const PullTicket first = held.Hold(Pull(1, 100));
  const PullTicket second = held.Hold(Pull(2, 200));
  EXPECT_NE(first, kNoTicket);
  EXPECT_NE(first, second);
  EXPECT_EQ(held.Take(first)->step, Step(1));
  EXPECT_FALSE(held.Take(first).has_value());
  EXPECT_FALSE(held.Take(kNoTicket).has_value());
  EXPECT_EQ(held.next_expiry_us(), 200);  // It left nothing behind.
  EXPECT_NE(held.Hold(Pull(3, 50)), first);
}

TEST(HeldPullsTest, IsBounded) {
  HeldPulls held(2);
  held.Hold(Pull(1, 0));
  EXPECT_FALSE(held.full());
  held.Hold(Pull(2, 0));
  EXPECT_TRUE(held.full());
  held.TakeAll();
  EXPECT_FALSE(held.full());
}

}  // namespace
}  // namespace thermocline
