#include "common/net/status.h"

#include <gtest/gtest.h>

#include <string>

namespace thermocline {
namespace {

TEST(Status, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << code;
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
  }
}

TEST(Status, AnEndWithoutAReasonIsABrokenConnection) {
  const absl::Status silent = FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, ""));
  EXPECT_EQ(silent.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(silent.message(), "");
}

TEST(Status, LongMessagesAreCut) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(status.error_message(), std::string(kMaxStatusMessageBytes, 'x') + "...");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  EXPECT_EQ(WithContext(absl::NotFoundError("no table 3"), "Pull at server 1"),
            absl::NotFoundError("Pull at server 1: no table 3"));
  EXPECT_TRUE(WithContext(absl::OkStatus(), "Pull").ok());
}

}  // namespace
}  // namespace thermocline
