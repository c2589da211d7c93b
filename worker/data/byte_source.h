// The bytes of a data file from first to last, inflated where it is gzip.
#ifndef THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace thermocline {

// Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Plain, or gzip (one or more members) by its first two bytes.
  // Errors: kNotFound, kPermissionDenied, kInvalidArgument (a directory), kUnavailable (other).
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path);

  // Fills the front of `buffer` and returns how much of it; 0 at the end only.
  // Errors: kDataLoss (gzip that is truncated or corrupt: file and offset), kUnavailable (disk).
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;

  // Bytes of the file that are consumed, and its size; for progress.
  virtual int64_t position() const = 0;
  virtual int64_t size() const = 0;
  virtual bool compressed() const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_
