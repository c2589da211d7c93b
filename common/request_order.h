// Requests of one sender that may arrive after it gave them up: those that a later one has
// overtaken must not be taken any more.
#ifndef THERMOCLINE_COMMON_REQUEST_ORDER_H_
#define THERMOCLINE_COMMON_REQUEST_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace thermocline {

// Not thread-safe.
class RequestOrder {
 public:
  // `sequence` rises from one request to the next; 0: the request has no order.
  // Errors: kFailedPrecondition (a later one was taken).
  absl::Status Take(uint64_t sequence) {
    if (sequence == 0) return absl::OkStatus();
    if (sequence < newest_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "request ", sequence, " comes too late: request ", newest_, " was taken already"));
    }
    newest_ = sequence;
    return absl::OkStatus();
  }

 private:
  uint64_t newest_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_REQUEST_ORDER_H_
