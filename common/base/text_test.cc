#include "common/base/text.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

TEST(ByteSizeTest, Units) {
  EXPECT_EQ(*ParseByteSize("0B"), 0u);
  EXPECT_EQ(*ParseByteSize("17B"), 17u);
  EXPECT_EQ(*ParseByteSize("3KiB"), 3072u);
  EXPECT_EQ(*ParseByteSize("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseByteSize("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(*ParseByteSize("9223372036854775807B"), (uint64_t{1} << 63) - 1);
}

TEST(ByteSizeTest, WhatIsNoSize) {
  for (const char* text : {"", "B", "MiB", "12", "12M", "12MB", "1.5GiB", "-1MiB", " 1MiB", "1 MiB",
                           "0x1MiB", "8388608TiB", "99999999999999999999B"}) {
    EXPECT_EQ(ParseByteSize(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

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

TEST(IsUtf8Test, TellsUtf8FromOtherBytes) {
  for (const char* text : {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text :
       {"caf\xe9", "caf\xe9 au lait", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\x80", "\xe2\x82\x41"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

}  // namespace
}  // namespace thermocline
