#include "common/net/status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace thermocline {

static_assert(static_cast<int>(absl::StatusCode::kCancelled) == grpc::StatusCode::CANCELLED &&
              static_cast<int>(absl::StatusCode::kDeadlineExceeded) ==
                  grpc::StatusCode::DEADLINE_EXCEEDED &&
              static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE &&
              static_cast<int>(absl::StatusCode::kDataLoss) == grpc::StatusCode::DATA_LOSS &&
              static_cast<int>(absl::StatusCode::kUnauthenticated) ==
                  grpc::StatusCode::UNAUTHENTICATED);

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  std::string text(message.substr(0, kMaxStatusMessageBytes));
  if (text.size() < message.size()) text += "...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::INTERNAL && status.error_message().empty()) {
    return absl::UnavailableError("the call ended without an answer or a reason");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace thermocline
