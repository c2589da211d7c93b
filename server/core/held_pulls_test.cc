#include "server/core/held_pulls.h"

#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

HeldPull Pull(int64_t step, int64_t since_us) {
  HeldPull pull;
  pull.step = Step(step);
  pull.held_since_us = since_us;
  return pull;
}

std::vector<int64_t> StepsOf(const std::vector<HeldPull>& pulls) {
  std::vector<int64_t> steps;
  for (const HeldPull& pull : pulls) steps.push_back(pull.step.value());
  return steps;
}

TEST(HeldPullsTest, TakesReadyOnesInTheOrderTheyCame) {
  HeldPulls held(10, 100);
  for (const int64_t step : {3, 1, 4, 2}) held.Hold(Pull(step, 0));
  const auto even = held.TakeReady([](const HeldPull& p) { return p.step.value() % 2 == 0; });
  EXPECT_EQ(StepsOf(even), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(StepsOf(held.TakeAll()), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(held.size(), 0u);
}

TEST(HeldPullsTest, ExpiresAfterTheHoldTime) {
  HeldPulls held(10, 100);
  held.Hold(Pull(1, 5));
  held.Hold(Pull(2, 5));
  held.Hold(Pull(3, 60));
  EXPECT_EQ(held.next_expiry_us(), 105);
  EXPECT_TRUE(held.TakeExpired(104).empty());
  EXPECT_EQ(StepsOf(held.TakeExpired(105)), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(held.next_expiry_us(), 160);
  EXPECT_EQ(StepsOf(held.TakeExpired(1000)), (std::vector<int64_t>{3}));
}

TEST(HeldPullsTest, IsBounded) {
  HeldPulls held(2, 100);
  held.Hold(Pull(1, 0));
  EXPECT_FALSE(held.full());
  held.Hold(Pull(2, 0));
  EXPECT_TRUE(held.full());
  held.TakeAll();
  EXPECT_FALSE(held.full());
}

}  // namespace
}  // namespace thermocline
