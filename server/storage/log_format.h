// The bytes of a push log: segments of records (docs/formats.md). All integers are little-endian.
//
//   segment   header (64 bytes), then records, one after the other
//   record    header (40 bytes), payload (one chunk of a push), zeros up to a multiple of 8
//
// Records are numbered from 1 across segments, without a gap: the log sequence number (LSN).
#ifndef THERMOCLINE_SERVER_STORAGE_LOG_FORMAT_H_
#define THERMOCLINE_SERVER_STORAGE_LOG_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

using Lsn = StrongId<struct LsnTag, uint64_t>;
inline constexpr Lsn kNoLsn{0};
constexpr Lsn operator+(Lsn lsn, uint64_t n) { return Lsn(lsn.value() + n); }

inline constexpr uint32_t kLogFormatVersion = 2;
inline constexpr size_t kSegmentHeaderBytes = 64;
inline constexpr size_t kRecordHeaderBytes = 40;
inline constexpr size_t kRecordAlignment = 8;
// A payload is one message, and those are smaller; keeps damaged lengths from sizing our buffers.
inline constexpr uint32_t kMaxPayloadBytes = 1u << 30;

// Whose log it is. Files of another identity are never mixed in.
struct LogIdentity {
  uint64_t job_hash = 0;  // JobHash
  uint64_t generation = 0;
  uint32_t server_index = 0;

  friend bool operator==(const LogIdentity& a, const LogIdentity& b) {
    return a.job_hash == b.job_hash && a.generation == b.generation &&
           a.server_index == b.server_index;
  }
};
uint64_t JobHash(absl::string_view job_id);

struct SegmentHeader {
  LogIdentity identity;
  Lsn first_lsn;
  // The greatest step of all records before it, those included that were dropped; kNoStep where
  // there are none.
  Step newest_before = kNoStep;
  // Every record up to this one was on the medium when the segment was begun.
  Lsn synced_through = kNoLsn;
  uint32_t version = kLogFormatVersion;  // of its records; the header is the same in all
};
std::array<char, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header);

enum class SegmentHeaderState {
  kValid,
  kDamaged,      // Too short, not ours, or the checksum is wrong.
  kOtherVersion  // Valid, but of records that this program doesn't read.
};
// `bytes`: the first kSegmentHeaderBytes of a file, or all of a shorter one. Fills `header` unless
// it is damaged.
SegmentHeaderState DecodeSegmentHeader(absl::string_view bytes, SegmentHeader* header);

// push-<generation>-<number>.log, 16 hexadecimal digits each. The number is the LSN that was due
// when the file was made: that of its first record, or, where records came in between, a smaller
// one. So the names of one generation's segments are in their order.
struct SegmentId {
  uint64_t generation = 0;
  Lsn number;
};
std::string SegmentName(const SegmentId& id);
std::optional<SegmentId> ParseSegmentName(absl::string_view name);

struct RecordHeader {
  uint32_t payload_bytes = 0;
  Lsn lsn;
  uint64_t generation = 0;
  // Every record up to this one was on the medium when this one was written.
  Lsn synced_through;
  uint32_t type = 0;
};

constexpr uint64_t PaddedPayloadBytes(uint64_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
constexpr uint64_t RecordBytes(uint32_t payload_bytes) {
  return kRecordHeaderBytes + PaddedPayloadBytes(payload_bytes);
}

// Computes the checksum over the header and the pieces. payload_bytes is theirs.
std::array<char, kRecordHeaderBytes> EncodeRecordHeader(
    RecordHeader header, absl::Span<const absl::string_view> payload);

// The header as it stands; nothing is verified. REQUIRES: bytes.size() >= kRecordHeaderBytes
RecordHeader PeekRecordHeader(absl::string_view bytes);
// Whether header and payload are what was written. `record`: RecordBytes(payload_bytes) bytes.
bool RecordIsIntact(absl::string_view record);

inline constexpr uint32_t kPushChunkRecord = 1;

// The pieces of the payload that is a chunk of a push; most of them lie in the chunk itself and are
// never copied.
class PushRecord {
 public:
  // `chunk` outlives this. REQUIRES: its ranges follow each other in keys and values, as a decoded
  // message's do.
  explicit PushRecord(const wire::PushChunk& chunk);
  PushRecord(const PushRecord&) = delete;
  PushRecord& operator=(const PushRecord&) = delete;

  const std::vector<absl::string_view>& pieces() const { return pieces_; }

 private:
  std::string head_;
  std::vector<absl::string_view> pieces_;
};

// The chunk again, but for its header's job, generation and acknowledgement: those are the log's.
// Errors: kDataLoss (the sizes contradict each other).
absl::StatusOr<wire::PushChunk> DecodePushRecord(absl::string_view payload);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_LOG_FORMAT_H_
