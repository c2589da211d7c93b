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
// Payloads are messages, and always smaller. A damaged length can't make us allocate more.
inline constexpr uint32_t kMaxPayloadBytes = 1u << 30;

// The server that a log belongs to. A log never contains files of another identity.
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
  // The greatest step of all records before it, dropped ones included; kNoStep where there are
  // none.
  Step newest_before = kNoStep;
  // Every record up to this LSN was on the medium when the segment was begun.
  Lsn synced_through = kNoLsn;
  uint32_t version = kLogFormatVersion;  // The records' format; headers are the same in all.
};
std::array<char, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header);

enum class SegmentHeaderState {
  kValid,
  kDamaged,      // It is too short, not a header of ours, or its checksum is wrong.
  kOtherVersion  // It is valid, but this program can't read the records.
};
// Fills `header` unless it is damaged. `bytes`: the first kSegmentHeaderBytes of a file, or all of
// a shorter file.
SegmentHeaderState DecodeSegmentHeader(absl::string_view bytes, SegmentHeader* header);

// A segment is called push-<generation>-<number>.log, with 16 hexadecimal digits each. The number
// is the LSN that came next when the file was made. It is the LSN of the file's first record, or a
// smaller one where records were still written to the segment before. So names of one generation's
// segments sort in the segments' order.
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
  // Every record up to this LSN was on the medium when the record was written.
  Lsn synced_through;
  uint32_t type = 0;
};

constexpr uint64_t PaddedPayloadBytes(uint64_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
constexpr uint64_t RecordBytes(uint32_t payload_bytes) {
  return kRecordHeaderBytes + PaddedPayloadBytes(payload_bytes);
}

// Sets payload_bytes and the checksum of header and payload.
std::array<char, kRecordHeaderBytes> EncodeRecordHeader(
    RecordHeader header, absl::Span<const absl::string_view> payload);

// Reads a header without verifying it. REQUIRES: bytes.size() >= kRecordHeaderBytes
RecordHeader PeekRecordHeader(absl::string_view bytes);
// Whether the checksum fits header and payload. `record`: RecordBytes(payload_bytes) bytes.
bool RecordIsIntact(absl::string_view record);

inline constexpr uint32_t kPushChunkRecord = 1;

// A chunk of a push as a record's payload, in pieces. Most of them are memory of the chunk itself,
// and are never copied.
class PushRecord {
 public:
  // `chunk` outlives the record. REQUIRES: its ranges follow each other in keys and values, as in a
  // decoded message.
  explicit PushRecord(const wire::PushChunk& chunk);
  PushRecord(const PushRecord&) = delete;
  PushRecord& operator=(const PushRecord&) = delete;

  const std::vector<absl::string_view>& pieces() const { return pieces_; }

 private:
  std::string head_;
  std::vector<absl::string_view> pieces_;
};

// Decodes a chunk. Job, generation and acknowledgement of its header are not set: the log's
// identity has them. Errors: kDataLoss (the sizes contradict each other).
absl::StatusOr<wire::PushChunk> DecodePushRecord(absl::string_view payload);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_LOG_FORMAT_H_
