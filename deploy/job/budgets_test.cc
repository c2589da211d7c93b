#include "deploy/job/budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace thermocline {
namespace {

using ::testing::ElementsAre;

TEST(Budget, CountsAnewOnceTheJobGotFurther) {
  Budget one(1);
  EXPECT_TRUE(one.Spend(Step(57)));
  EXPECT_TRUE(one.Spend(Step(58)));
  EXPECT_FALSE(one.Spend(Step(58)));
  Budget from_the_start(1);
  EXPECT_TRUE(from_the_start.Spend(kNoStep));
  EXPECT_FALSE(from_the_start.Spend(kNoStep));
  // Where it was before is no further.
  Budget earlier(2);
  EXPECT_TRUE(earlier.Spend(Step(57)));
  EXPECT_TRUE(earlier.Spend(Step(50)));
  EXPECT_FALSE(earlier.Spend(Step(57)));
  EXPECT_TRUE(earlier.Spend(Step(58)));
  EXPECT_TRUE(earlier.Spend(Step(58)));
  EXPECT_FALSE(earlier.Spend(Step(58)));
  EXPECT_FALSE(Budget(0).Spend(Step(3)));
}

TEST(Budget, GoesOnWithWhatAnEarlierControllerHasSpent) {
  Budget before(2);
  EXPECT_TRUE(before.Spend(Step(57)));
  EXPECT_TRUE(before.Spend(Step(57)));
  Budget same(2, before.spent());
  EXPECT_FALSE(same.Spend(kNoStep));  // The job is no further than it was.
  EXPECT_FALSE(same.Spend(Step(57)));
  EXPECT_TRUE(same.Spend(Step(58)));
  // One that has spent nothing is as new; so is one before the first step.
  Budget unspent(1, Budget(1).spent());
  EXPECT_TRUE(unspent.Spend(kNoStep));
  Budget early(1, unspent.spent());
  EXPECT_FALSE(early.Spend(kNoStep));
  EXPECT_TRUE(early.Spend(Step(0)));
}

constexpr bool kCameUp = true;
constexpr bool kDidNotComeUp = false;
constexpr bool kCanGoBack = true;
constexpr bool kCannotGoBack = false;

TEST(RestartPolicy, DelaysDoubleWithinBounds) {
  RestartPolicy policy(100, kCannotGoBack);
  std::vector<int64_t> delays_ms;
  for (int i = 0; i < 9; ++i) {
    const RestartPolicy::Decision decision = policy.OnEnd(1, kDidNotComeUp, Step(7));
    EXPECT_TRUE(decision.restart);
    delays_ms.push_back(absl::ToInt64Milliseconds(decision.delay));
  }
  EXPECT_THAT(delays_ms, ElementsAre(0, 100, 200, 400, 800, 1600, 3200, 5000, 5000));
  // Another server has its own, and a job that got further begins again.
  EXPECT_EQ(policy.OnEnd(0, kCameUp, Step(7)).delay, absl::ZeroDuration());
  EXPECT_EQ(policy.OnEnd(1, kCameUp, Step(8)).delay, absl::ZeroDuration());
  EXPECT_EQ(policy.OnEnd(1, kCameUp, Step(8)).delay, RestartPolicy::kFirstDelay);
}

TEST(RestartPolicy, RestartsOfAllServersCountTogether) {
  RestartPolicy policy(2, kCanGoBack);
  EXPECT_TRUE(policy.OnEnd(0, kCameUp, Step(7)).restart);
  EXPECT_TRUE(policy.OnEnd(1, kCameUp, Step(7)).restart);
  const RestartPolicy::Decision third = policy.OnEnd(0, kCameUp, Step(7));
  EXPECT_FALSE(third.restart);
  EXPECT_TRUE(third.is_exhausted);
  EXPECT_EQ(third.why_not, "cluster.max_server_restarts is 2");
  EXPECT_TRUE(policy.OnEnd(0, kCameUp, Step(8)).restart);
}

TEST(RestartPolicy, AnAddressIsGivenUpWhereTheJobCanGoBack) {
  RestartPolicy policy(100, kCanGoBack);
  EXPECT_TRUE(policy.OnEnd(0, kCameUp, Step(7)).restart);
  for (uint32_t i = 1; i < RestartPolicy::kFailedStarts; ++i) {
    EXPECT_TRUE(policy.OnEnd(0, kDidNotComeUp, Step(7)).restart);
  }
  const RestartPolicy::Decision last = policy.OnEnd(0, kDidNotComeUp, Step(7));
  EXPECT_FALSE(last.restart);
  EXPECT_FALSE(last.is_exhausted);
  EXPECT_EQ(last.why_not, "it did not come up 5 times in a row");
  // In the next generation it came up, at another.
  EXPECT_TRUE(policy.OnEnd(0, kCameUp, Step(7)).restart);
  EXPECT_TRUE(policy.OnEnd(0, kDidNotComeUp, Step(7)).restart);
}

}  // namespace
}  // namespace thermocline
