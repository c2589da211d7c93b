#include "deploy/report/format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thermocline {
namespace {

TEST(Format, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(123456), "123,456");
  EXPECT_EQ(FormatCount(UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(Format, Times) {
  EXPECT_EQ(FormatMicros(85.4), "85 us");
  EXPECT_EQ(FormatMicros(1234), "1.2 ms");
  EXPECT_EQ(FormatMicros(3400000), "3.4 s");
  EXPECT_EQ(FormatMicros(NAN), "-");
  EXPECT_EQ(FormatSeconds(9.4), "0:09");
  EXPECT_EQ(FormatSeconds(3723), "1:02:03");
  EXPECT_EQ(FormatSeconds(INFINITY), "-");
}

TEST(Format, TablesAlign) {
  EXPECT_EQ(FormatTable({{"server", "rows"}, {}, {"a", "1,000"}, {"long name", "7", "x"}}),
            "server      rows\n"
            "-------------------\n"
            "a          1,000\n"
            "long name      7  x\n");
  EXPECT_EQ(FormatTable({}), "");
}

}  // namespace
}  // namespace thermocline
