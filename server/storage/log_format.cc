#include "server/storage/log_format.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

constexpr char kMagic[] = "TclnPush";  // 8 bytes

// Where a segment header's fields begin.
constexpr size_t kVersionAt = 8, kServerAt = 12, kJobAt = 16, kGenerationAt = 24, kFirstLsnAt = 32,
                 kNewestBeforeAt = 40, kHeaderSyncedAt = 48, kHeaderCrcAt = 60;
// A record header's. The checksum covers all that follows it, padding excluded.
constexpr size_t kCrcAt = 0, kLengthAt = 4, kLsnAt = 8, kRecordGenerationAt = 16, kSyncedAt = 24,
                 kTypeAt = 32;

template <typename T>
void Store(T value, size_t at, char* bytes) {
  std::memcpy(bytes + at, &value, sizeof(value));
}

template <typename T>
T Load(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

}  // namespace

uint64_t JobHash(absl::string_view job_id) {
  uint64_t hash = Mix64(job_id.size());
  for (const char c : job_id) hash = Mix64(hash ^ static_cast<uint8_t>(c));
  return hash;
}

std::array<char, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header) {
  std::array<char, kSegmentHeaderBytes> bytes = {};
  std::memcpy(bytes.data(), kMagic, 8);
  Store(header.version, kVersionAt, bytes.data());
  Store(header.identity.server_index, kServerAt, bytes.data());
  Store(header.identity.job_hash, kJobAt, bytes.data());
  Store(header.identity.generation, kGenerationAt, bytes.data());
  Store(header.first_lsn.value(), kFirstLsnAt, bytes.data());
  Store((header.newest_before + 1).value(), kNewestBeforeAt, bytes.data());
  Store(header.synced_through.value(), kHeaderSyncedAt, bytes.data());
  Store(Crc32c(bytes.data(), kHeaderCrcAt), kHeaderCrcAt, bytes.data());
  return bytes;
}

SegmentHeaderState DecodeSegmentHeader(absl::string_view bytes, SegmentHeader* header) {
  if (bytes.size() < kSegmentHeaderBytes || bytes.substr(0, 8) != kMagic ||
      Load<uint32_t>(bytes, kHeaderCrcAt) != Crc32c(bytes.data(), kHeaderCrcAt)) {
    return SegmentHeaderState::kDamaged;
  }
  header->version = Load<uint32_t>(bytes, kVersionAt);
  header->identity.server_index = Load<uint32_t>(bytes, kServerAt);
  header->identity.job_hash = Load<uint64_t>(bytes, kJobAt);
  header->identity.generation = Load<uint64_t>(bytes, kGenerationAt);
  header->first_lsn = Lsn(Load<uint64_t>(bytes, kFirstLsnAt));
  header->newest_before = Step(Load<int64_t>(bytes, kNewestBeforeAt)) - 1;
  header->synced_through = Lsn(Load<uint64_t>(bytes, kHeaderSyncedAt));
  return header->version == kLogFormatVersion ? SegmentHeaderState::kValid
                                              : SegmentHeaderState::kOtherVersion;
}

std::string SegmentName(const SegmentId& id) {
  return absl::StrFormat("push-%016x-%016x.log", id.generation, id.number.value());
}

std::optional<SegmentId> ParseSegmentName(absl::string_view name) {
  SegmentId id;
  uint64_t number = 0;
  if (name.size() != SegmentName(id).size() ||
      !absl::SimpleHexAtoi(name.substr(5, 16), &id.generation) ||
      !absl::SimpleHexAtoi(name.substr(22, 16), &number)) {
    return std::nullopt;
  }
  id.number = Lsn(number);
  if (name != SegmentName(id)) return std::nullopt;
  return id;
}

std::array<char, kRecordHeaderBytes> EncodeRecordHeader(
    RecordHeader header, absl::Span<const absl::string_view> payload) {
  uint64_t payload_bytes = 0;
  for (absl::string_view piece : payload) payload_bytes += piece.size();
  CHECK_LE(payload_bytes, kMaxPayloadBytes);
  std::array<char, kRecordHeaderBytes> bytes = {};
  Store(static_cast<uint32_t>(payload_bytes), kLengthAt, bytes.data());
  Store(header.lsn.value(), kLsnAt, bytes.data());
  Store(header.generation, kRecordGenerationAt, bytes.data());
  Store(header.synced_through.value(), kSyncedAt, bytes.data());
  Store(header.type, kTypeAt, bytes.data());
  uint32_t crc = Crc32c(bytes.data() + kLengthAt, kRecordHeaderBytes - kLengthAt);
  for (absl::string_view piece : payload) crc = ExtendCrc32c(crc, piece.data(), piece.size());
  Store(crc, kCrcAt, bytes.data());
  return bytes;
}

RecordHeader PeekRecordHeader(absl::string_view bytes) {
  CHECK_GE(bytes.size(), kRecordHeaderBytes);
  RecordHeader header;
  header.payload_bytes = Load<uint32_t>(bytes, kLengthAt);
  header.lsn = Lsn(Load<uint64_t>(bytes, kLsnAt));
  header.generation = Load<uint64_t>(bytes, kRecordGenerationAt);
  header.synced_through = Lsn(Load<uint64_t>(bytes, kSyncedAt));
  header.type = Load<uint32_t>(bytes, kTypeAt);
  return header;
}

bool RecordIsIntact(absl::string_view record) {
  const size_t payload_bytes = PeekRecordHeader(record).payload_bytes;
  CHECK_GE(record.size(), kRecordHeaderBytes + payload_bytes);
  return Load<uint32_t>(record, kCrcAt) ==
         Crc32c(record.data() + kLengthAt, kRecordHeaderBytes - kLengthAt + payload_bytes);
}

}  // namespace thermocline
