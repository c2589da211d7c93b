#include "common/job/data_place.h"

#include <gtest/gtest.h>

#include <string>

namespace thermocline {
namespace {

ScheduleState State() {
  ScheduleState state;
  state.set_first_step(1234);
  state.set_pass(2);
  state.set_is_hot(true);
  state.set_hot_batches(600);
  state.set_cold_batches(634);
  state.set_rate(100.0 / 3);
  state.set_logloss(0.1 + 0.2);
  state.set_falls(3);
  return state;
}

TEST(DataPlaceTest, ItsTextIsReadBackToTheLastBit) {
  const std::string place = MakeDataPlace(State());
  const std::string text = DataPlaceToText(place);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto read = ParseDataPlace(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, place);
  EXPECT_EQ(FirstStepAt(place), Step(1234));
}

TEST(DataPlaceTest, AnyOtherTextIsRefused) {
  for (const char* text : {"first_step: ", "step: 3", "first_step: -1", "rate: -2", "rate: nan"}) {
    EXPECT_EQ(ParseDataPlace(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(DataPlaceTest, OtherBytesAreNoPlace) {
  EXPECT_EQ(ReadDataPlace("\xff").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(FirstStepAt("\xff"), kNoStep);
  EXPECT_EQ(FirstStepAt(""), kNoStep);
}

// Manifests and RPCs had the message itself in this field.
TEST(DataPlaceTest, ItsBytesOnTheWireAreThoseOfTheMessage) {
  EvaluationState state;
  state.set_data_place(MakeDataPlace(State()));
  const std::string bytes = State().SerializeAsString();
  EXPECT_EQ(state.SerializeAsString(),
            std::string("\x52") + static_cast<char>(bytes.size()) + bytes);
}

}  // namespace
}  // namespace thermocline
