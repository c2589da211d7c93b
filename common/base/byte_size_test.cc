#include "common/base/byte_size.h"

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

}  // namespace
}  // namespace thermocline
