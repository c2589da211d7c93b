#include "deploy/trace/clock_offsets.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A poll of a process whose clock is `offset_ns` ahead, and whose answer takes `took_ns`, of which
// `share` passes before it reads its clock.
ClockPoll Poll(int64_t asked_ns, int64_t took_ns, int64_t offset_ns, double share = 0.5) {
  const auto before_ns = static_cast<int64_t>(share * static_cast<double>(took_ns));
  return {asked_ns, asked_ns + took_ns, asked_ns + before_ns + offset_ns};
}

TEST(ClockOffsetsTest, AProcessThatHasNotAnsweredHasNone) {
  ClockOffset offset;
  EXPECT_FALSE(ClockOffsets().Find("worker 0", 0, &offset));
}

TEST(ClockOffsetsTest, TheErrorIsHalfTheRoundTripHoweverItIsShared) {
  for (const double share : {0.0, 0.3, 0.5, 1.0}) {
    ClockOffsets offsets;
    offsets.Add("worker 0", Poll(5 * kSecond, 400'000, -7 * kSecond, share));
    ClockOffset offset;
    ASSERT_TRUE(offsets.Find("worker 0", 5 * kSecond + 200'000, &offset));
    EXPECT_EQ(offset.error_ns, 200'000);
    EXPECT_LE(std::abs(offset.offset_ns + 7 * kSecond), offset.error_ns) << share;
  }
}

TEST(ClockOffsetsTest, TheShortestRoundTripCounts) {
  ClockOffsets offsets;
  offsets.Add("server 1", Poll(kSecond, 900'000, 3'000'000, 0.9));
  offsets.Add("server 1", Poll(2 * kSecond, 100'000, 3'000'000));
  offsets.Add("server 1", Poll(3 * kSecond, 900'000, 3'000'000, 0.1));
  ClockOffset offset;
  ASSERT_TRUE(offsets.Find("server 1", 2 * kSecond + 50'000, &offset));
  EXPECT_EQ(offset.offset_ns, 3'000'000);
  EXPECT_EQ(offset.error_ns, 50'000);
}

TEST(ClockOffsetsTest, TheErrorGrowsWithTheTimeSinceThePoll) {
  ClockOffsets offsets;
  offsets.Add("server 1", Poll(0, 100'000, 0));
  ClockOffset offset;
  ASSERT_TRUE(offsets.Find("server 1", 50'000 + 10 * kSecond, &offset));
  EXPECT_EQ(offset.error_ns, 50'000 + 1'000'000);
  // So that a later poll says more, though its round trip is longer.
  offsets.Add("server 1", Poll(10 * kSecond, 600'000, 400'000));
  ASSERT_TRUE(offsets.Find("server 1", 10 * kSecond + 300'000, &offset));
  EXPECT_EQ(offset.offset_ns, 400'000);
  EXPECT_EQ(offset.error_ns, 300'000);
}

TEST(ClockOffsetsTest, AnotherHostsClockReplacesThatOfTheProcessBefore) {
  ClockOffsets offsets;
  offsets.Add("server 1", Poll(kSecond, 100'000, 0));
  offsets.Add("server 1", Poll(2 * kSecond, 900'000, 5 * kSecond));
  ClockOffset offset;
  ASSERT_TRUE(offsets.Find("server 1", 2 * kSecond, &offset));
  EXPECT_EQ(offset.offset_ns, 5 * kSecond);
}

}  // namespace
}  // namespace thermocline
