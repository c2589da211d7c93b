#include "common/job/did_you_mean.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

const std::vector<std::string> kNames = {"batch_size", "passes", "max_steps", "learning_rate"};

TEST(DidYouMean, SuggestsTheNearestName) {
  EXPECT_EQ(DidYouMean("batchsize", kNames), " (did you mean 'batch_size'?)");
  EXPECT_EQ(DidYouMean("batch-size", kNames), " (did you mean 'batch_size'?)");
  EXPECT_EQ(DidYouMean("pases", kNames), " (did you mean 'passes'?)");
  EXPECT_EQ(DidYouMean("LEARNING_RATE", kNames), " (did you mean 'learning_rate'?)");
  EXPECT_EQ(DidYouMean("learning", kNames), " (did you mean 'learning_rate'?)");
}

TEST(DidYouMean, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(DidYouMean("dropout", kNames), "");
  EXPECT_EQ(DidYouMean("", kNames), "");
  EXPECT_EQ(DidYouMean("x", {}), "");
  EXPECT_EQ(DidYouMean(std::string(100000, 'p'), kNames), "");
}

}  // namespace
}  // namespace thermocline
