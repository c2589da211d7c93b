// The frame around the small files of a checkpoint directory (docs/formats.md): a program that
// reads one gets exactly the payload that was written, or an error. All integers are little-endian.
//
//   0  8 bytes  magic, by kind of file
//   8  uint32   format version
//   12 uint32   payload bytes
//   16 uint32   CRC-32C of bytes 0 to 15 and of the payload
//   20          payload
#ifndef THERMOCLINE_COMMON_CHECKPOINT_FILE_FRAME_H_
#define THERMOCLINE_COMMON_CHECKPOINT_FILE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/disk/disk.h"

namespace thermocline {

inline constexpr size_t kFrameHeaderBytes = 20;
// Far more than any manifest has. Bounds the memory that a damaged file can ask for.
inline constexpr uint32_t kMaxFramePayloadBytes = 1u << 28;

struct FrameFormat {
  const char* magic;           // 8 characters
  uint32_t version;            // The one that is written.
  uint32_t first_version = 0;  // The first one that is read; 0: no other.

  bool Knows(uint32_t other) const {
    return other == version || (first_version > 0 && other >= first_version && other < version);
  }
};

// REQUIRES: payload.size() <= kMaxFramePayloadBytes
std::string EncodeFrame(const FrameFormat& format, absl::string_view payload);

// Returns the payload. `path` is for messages.
// Errors: kDataLoss (cut short, too long, damaged, or of another kind), kFailedPrecondition
// (intact, but of another version).
absl::StatusOr<std::string> DecodeFrame(const FrameFormat& format, absl::string_view bytes,
                                        const std::string& path);

// The same for any version: all have the same frame. Errors: kDataLoss
absl::StatusOr<std::string> DecodeFrameOfAnyVersion(const char* magic, absl::string_view bytes,
                                                    const std::string& path);

// Reads a file that may have a frame.
// Errors: kNotFound, kDataLoss (larger than any frame), kUnavailable
absl::StatusOr<std::string> ReadWholeFile(Disk* disk, const std::string& path);

// Makes or replaces a file, whole or not at all even if the host crashes: writes path.tmp, syncs
// it, renames it, syncs the folder. Errors: kNotFound (no such folder), kResourceExhausted,
// kUnavailable. After an error the file is the old one or the new one.
absl::Status WriteWholeFile(Disk* disk, absl::string_view bytes, const std::string& path);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_FILE_FRAME_H_
