#include "common/request_order.h"

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(RequestOrderTest, TakesWhatNoLaterOneHasOvertaken) {
  RequestOrder order;
  EXPECT_TRUE(order.Take(3).ok());
  EXPECT_TRUE(order.Take(3).ok());  // The same, sent again.
  EXPECT_TRUE(order.Take(7).ok());
  EXPECT_EQ(order.Take(6).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(order.Take(0).ok());  // Without an order.
  EXPECT_EQ(order.Take(3).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(order.Take(8).ok());
}

}  // namespace
}  // namespace thermocline
