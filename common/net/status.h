// absl::Status to grpc::Status and back: the one place where the two meet. The codes are the same
// numbers in both.
#ifndef THERMOCLINE_COMMON_NET_STATUS_H_
#define THERMOCLINE_COMMON_NET_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// A message travels in HTTP/2 metadata, which peers limit to 8 KiB; a longer one is cut there.
inline constexpr size_t kMaxStatusMessageBytes = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);
// gRPC ends a call with INTERNAL and no text when its peer goes away in the middle of it: that
// becomes kUnavailable, as other broken connections are. Our own programs always give a text.
absl::Status FromGrpcStatus(const grpc::Status& status);

// The same code, with "context: " before the message. An OK status stays as it is.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_STATUS_H_
