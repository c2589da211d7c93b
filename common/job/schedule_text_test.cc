#include "common/job/schedule_text.h"

#include <gtest/gtest.h>

#include <string>

namespace thermocline {
namespace {

TEST(ScheduleTextTest, IsReadBackToTheLastBit) {
  ScheduleState state;
  state.set_first_step(1234);
  state.set_pass(2);
  state.set_is_hot(true);
  state.set_hot_batches(600);
  state.set_cold_batches(634);
  state.set_rate(100.0 / 3);
  state.set_logloss(0.1 + 0.2);
  state.set_falls(3);
  const std::string text = ScheduleToText(state);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto read = ParseSchedule(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), state.SerializeAsString());
}

TEST(ScheduleTextTest, AnythingElseIsRefused) {
  for (const char* text : {"first_step: ", "step: 3", "first_step: -1", "rate: -2", "rate: nan"}) {
    EXPECT_EQ(ParseSchedule(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace thermocline
