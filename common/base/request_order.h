// The order of one sender's requests, which may arrive after the sender's call has timed out: a
// request that comes after a later one must not be accepted.
#ifndef THERMOCLINE_COMMON_BASE_REQUEST_ORDER_H_
#define THERMOCLINE_COMMON_BASE_REQUEST_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace thermocline {

// Not thread-safe.
class RequestOrder {
 public:
  // Between two requests to one process a sender counts on by far less than this. A number further
  // ahead did not come from the sender, and would make all its later requests too late.
  static constexpr uint64_t kMaxAhead = uint64_t{1} << 32;

  // Accepts the request with this number. The sender's numbers rise from one request to the next;
  // a request with number 0 has no order and is always accepted. The same number may come again.
  // Errors: kFailedPrecondition (a later one was taken), kInvalidArgument (more than kMaxAhead
  // beyond the newest).
  absl::Status Take(uint64_t sequence) {
    if (sequence == 0) return absl::OkStatus();
    if (sequence < newest_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "request ", sequence, " comes too late: request ", newest_, " was taken already"));
    }
    if (sequence - newest_ > kMaxAhead) {
      return absl::InvalidArgumentError(absl::StrCat("request ", sequence, " is too far ahead of ",
                                                     newest_, ", the newest that was taken"));
    }
    newest_ = sequence;
    return absl::OkStatus();
  }
  // The highest number that was taken; 0: none.
  uint64_t newest() const { return newest_; }

 private:
  uint64_t newest_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_REQUEST_ORDER_H_
