#include <gtest/gtest.h>

#include <cmath>

#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

LearningRate Constant(float base) {
  LearningRate rate;
  rate.set_base(base);
  return rate;
}

TEST(LearningRateAt, ConstantIsExact) {
  const LearningRate rate = Constant(0.01f);
  EXPECT_EQ(LearningRateAt(rate, Step(0)), 0.01f);
  EXPECT_EQ(LearningRateAt(rate, Step(int64_t{1} << 40)), 0.01f);
}

TEST(LearningRateAt, WarmsUpLinearlyAndReachesTheBase) {
  LearningRate rate = Constant(0.8f);
  rate.set_warmup_steps(4);
  EXPECT_FLOAT_EQ(LearningRateAt(rate, Step(0)), 0.2f);
  EXPECT_FLOAT_EQ(LearningRateAt(rate, Step(1)), 0.4f);
  EXPECT_EQ(LearningRateAt(rate, Step(3)), 0.8f);
  EXPECT_EQ(LearningRateAt(rate, Step(4)), 0.8f);
}

TEST(LearningRateAt, DecaysByThePowerDownToTheEnd) {
  LearningRate rate = Constant(1.0f);
  rate.set_warmup_steps(2);
  rate.mutable_decay()->set_start_step(10);
  rate.mutable_decay()->set_steps(100);
  rate.mutable_decay()->set_power(2);
  rate.mutable_decay()->set_end(0.01f);
  EXPECT_EQ(LearningRateAt(rate, Step(9)), 1.0f);
  EXPECT_EQ(LearningRateAt(rate, Step(10)), 1.0f);
  EXPECT_FLOAT_EQ(LearningRateAt(rate, Step(60)), 0.25f);
  EXPECT_EQ(LearningRateAt(rate, Step(109)), 0.01f);  // 0.0001 is below the end
  EXPECT_EQ(LearningRateAt(rate, Step(1000000)), 0.01f);
}

TEST(LearningRateAt, OtherPowers) {
  LearningRate rate = Constant(1.0f);
  rate.mutable_decay()->set_steps(4);
  for (const float power : {0.5f, 1.0f, 1.5f, 3.0f, 0.3f}) {
    rate.mutable_decay()->set_power(power);
    EXPECT_FLOAT_EQ(LearningRateAt(rate, Step(1)), std::pow(0.75f, power)) << power;
    EXPECT_EQ(LearningRateAt(rate, Step(4)), 0.0f) << power;
  }
}

TEST(LearningRateAt, NeverRisesAfterTheWarmUp) {
  LearningRate rate = Constant(0.1f);
  rate.set_warmup_steps(7);
  rate.mutable_decay()->set_start_step(20);
  rate.mutable_decay()->set_steps(333);
  rate.mutable_decay()->set_power(2);
  for (int step = 7; step < 500; ++step) {
    EXPECT_LE(LearningRateAt(rate, Step(step)), LearningRateAt(rate, Step(step - 1))) << step;
  }
}

}  // namespace
}  // namespace thermocline
