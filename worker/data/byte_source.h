// A data file as bytes.
#ifndef THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/arrow/object_store.h"

namespace thermocline {

// Where the reading of a file may begin again: at byte `offset` of its text.
struct RestartPoint {
  int64_t offset = 0;
  int64_t file_offset = 0;  // of the next byte of the file
  // gzip, within a member: how many of the upper bits of the byte before file_offset come first,
  // and the text before `offset`, deflated, which the next refers to. bits < 0: a member begins
  // here, or a frame of zstd; plain text is such everywhere.
  int bits = -1;
  std::string window;
};

// The bytes of a data file from first to last, decompressed where it is gzip or zstd. Not
// thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Plain, or gzip (one or more members) or zstd (one or more frames) by its first bytes. `store`:
  // of a path that names an object. Errors: kNotFound, kPermissionDenied, kInvalidArgument (a
  // directory), kUnavailable (other); of objects as ObjectStore's.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path,
                                                          ObjectStore* store = nullptr);

  // Fills the front of `buffer` and returns how much of it; 0 at the end only.
  // Errors: kDataLoss (compressed data that are truncated or corrupt: file and offset),
  // kUnavailable (disk).
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;

  // From now on Read calls `on_point` with places where reading may begin again, where there are
  // any, at least `every_bytes` of text apart. Plain text needs none.
  virtual void CollectPoints(int64_t /*every_bytes*/,
                             std::function<void(RestartPoint)> /*on_point*/) {}
  // Read goes on at `point`, of this very file. Checksums of what is left out are not checked.
  // Errors: kUnavailable (it can't be done, or the disk), kDataLoss (the point is none); what is
  // read then is not determined.
  virtual absl::Status Restart(const RestartPoint& /*point*/) {
    return absl::UnavailableError("the file is read from its first byte only");
  }

  // Bytes of the file that are consumed, and its size; for progress.
  virtual int64_t position() const = 0;
  virtual int64_t size() const = 0;
  virtual bool compressed() const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_
