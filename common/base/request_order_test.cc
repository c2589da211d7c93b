#include "common/base/request_order.h"

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

// A stray request with such a number would make all later ones too late.
TEST(RequestOrderTest, RefusesWhatIsTooFarAhead) {
  RequestOrder order;
  EXPECT_EQ(order.Take(uint64_t{1} << 63).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(order.Take(UINT64_MAX).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(order.newest(), 0u);
  EXPECT_TRUE(order.Take(RequestOrder::kMaxAhead).ok());
  EXPECT_TRUE(order.Take(2 * RequestOrder::kMaxAhead).ok());
  EXPECT_EQ(order.Take(3 * RequestOrder::kMaxAhead + 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(order.newest(), 2 * RequestOrder::kMaxAhead);
  EXPECT_EQ(order.Take(1).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace thermocline
