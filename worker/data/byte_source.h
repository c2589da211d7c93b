// Reads a data file's bytes, decompressed, and can begin again in its middle.
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

// A place where the reading of a file may begin again: byte `offset` of its text, where "text" is
// what the file holds once it is decompressed.
struct RestartPoint {
  int64_t offset = 0;
  int64_t file_offset = 0;  // The next byte of the file to read.
  // Within a member of gzip: how many of the upper bits of the byte before file_offset come first.
  // -1 where nothing has to be known of the text before: at the begin of a member or of a frame of
  // zstd, and anywhere in plain text.
  int bits = -1;
  // Within a member of gzip: the text before `offset` that later text may refer to, deflated.
  std::string window;
};

// Reads the bytes of a data file from first to last, decompressed if it is gzip or zstd. Not
// thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Opens a file. Its first bytes say whether it is gzip (one or more members), zstd (one or more
  // frames) or plain. `store` may be null if `path` names no object.
  // Errors: kNotFound, kPermissionDenied, kInvalidArgument (a directory), kUnavailable (other); for
  // objects ObjectStore's.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path,
                                                          ObjectStore* store = nullptr);

  // Fills the front of `buffer` and returns how much of it; 0 at the end only.
  // Errors: kDataLoss (compressed data that are truncated or corrupt: file and offset),
  // kUnavailable (disk).
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;

  // From now on Read calls `on_point` with places where reading may begin again, at least
  // `every_bytes` of text apart. Plain text gives no such places, since it needs none.
  virtual void CollectPoints(int64_t /*every_bytes*/,
                             std::function<void(RestartPoint)> /*on_point*/) {}
  // Lets Read go on at `point`, which is of this very file. Checksums that cover bytes which are
  // skipped are not checked. Errors: kUnavailable (this file can't be read so; the disk), kDataLoss
  // (there is no such point). After an error Read may return anything.
  virtual absl::Status Restart(const RestartPoint& /*point*/) {
    return absl::UnavailableError("the file is read from its first byte only");
  }

  // For progress: how many bytes of the file are consumed, and its size.
  virtual int64_t position() const = 0;
  virtual int64_t size() const = 0;
  virtual bool compressed() const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BYTE_SOURCE_H_
