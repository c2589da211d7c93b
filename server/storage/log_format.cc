#include "server/storage/log_format.h"

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr char kMagic[] = "TclnPush";  // 8 bytes

// Where a segment header's fields begin.
constexpr size_t kVersionAt = 8, kServerAt = 12, kJobAt = 16, kGenerationAt = 24, kFirstLsnAt = 32,
                 kNewestBeforeAt = 40, kHeaderSyncedAt = 48, kHeaderCrcAt = 60;
// A record header's. The checksum covers all that follows it, padding excluded.
constexpr size_t kCrcAt = 0, kLengthAt = 4, kLsnAt = 8, kRecordGenerationAt = 16, kSyncedAt = 24,
                 kTypeAt = 32;

}  // namespace

uint64_t JobHash(absl::string_view job_id) {
  uint64_t hash = Mix64(job_id.size());
  for (const char c : job_id) hash = Mix64(hash ^ static_cast<uint8_t>(c));
  return hash;
}

std::array<char, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header) {
  std::array<char, kSegmentHeaderBytes> bytes = {};
  std::memcpy(bytes.data(), kMagic, 8);
  StoreAt(header.version, kVersionAt, bytes.data());
  StoreAt(header.identity.server_index, kServerAt, bytes.data());
  StoreAt(header.identity.job_hash, kJobAt, bytes.data());
  StoreAt(header.identity.generation, kGenerationAt, bytes.data());
  StoreAt(header.first_lsn.value(), kFirstLsnAt, bytes.data());
  StoreAt((header.newest_before + 1).value(), kNewestBeforeAt, bytes.data());
  StoreAt(header.synced_through.value(), kHeaderSyncedAt, bytes.data());
  StoreAt(Crc32c(bytes.data(), kHeaderCrcAt), kHeaderCrcAt, bytes.data());
  return bytes;
}

SegmentHeaderState DecodeSegmentHeader(absl::string_view bytes, SegmentHeader* header) {
  if (bytes.size() < kSegmentHeaderBytes || bytes.substr(0, 8) != kMagic ||
      LoadAt<uint32_t>(bytes, kHeaderCrcAt) != Crc32c(bytes.data(), kHeaderCrcAt)) {
    return SegmentHeaderState::kDamaged;
  }
  header->version = LoadAt<uint32_t>(bytes, kVersionAt);
  header->identity.server_index = LoadAt<uint32_t>(bytes, kServerAt);
  header->identity.job_hash = LoadAt<uint64_t>(bytes, kJobAt);
  header->identity.generation = LoadAt<uint64_t>(bytes, kGenerationAt);
  header->first_lsn = Lsn(LoadAt<uint64_t>(bytes, kFirstLsnAt));
  header->newest_before = Step(LoadAt<int64_t>(bytes, kNewestBeforeAt)) - 1;
  header->synced_through = Lsn(LoadAt<uint64_t>(bytes, kHeaderSyncedAt));
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
  StoreAt(static_cast<uint32_t>(payload_bytes), kLengthAt, bytes.data());
  StoreAt(header.lsn.value(), kLsnAt, bytes.data());
  StoreAt(header.generation, kRecordGenerationAt, bytes.data());
  StoreAt(header.synced_through.value(), kSyncedAt, bytes.data());
  StoreAt(header.type, kTypeAt, bytes.data());
  uint32_t crc = Crc32c(bytes.data() + kLengthAt, kRecordHeaderBytes - kLengthAt);
  for (absl::string_view piece : payload) crc = ExtendCrc32c(crc, piece.data(), piece.size());
  StoreAt(crc, kCrcAt, bytes.data());
  return bytes;
}

RecordHeader PeekRecordHeader(absl::string_view bytes) {
  CHECK_GE(bytes.size(), kRecordHeaderBytes);
  RecordHeader header;
  header.payload_bytes = LoadAt<uint32_t>(bytes, kLengthAt);
  header.lsn = Lsn(LoadAt<uint64_t>(bytes, kLsnAt));
  header.generation = LoadAt<uint64_t>(bytes, kRecordGenerationAt);
  header.synced_through = Lsn(LoadAt<uint64_t>(bytes, kSyncedAt));
  header.type = LoadAt<uint32_t>(bytes, kTypeAt);
  return header;
}

bool RecordIsIntact(absl::string_view record) {
  const size_t payload_bytes = PeekRecordHeader(record).payload_bytes;
  CHECK_GE(record.size(), kRecordHeaderBytes + payload_bytes);
  return LoadAt<uint32_t>(record, kCrcAt) ==
         Crc32c(record.data() + kLengthAt, kRecordHeaderBytes - kLengthAt + payload_bytes);
}

// A chunk of a push
// -----------------------------------------------------------------------------------------------

namespace {

// What a payload begins with; all integers are little-endian.
struct Head {
  uint32_t rank;
  uint32_t chunk;
  uint32_t num_chunks;
  float learning_rate;
  int64_t step;
  uint32_t num_tables;
  uint32_t num_row_limits;
  uint64_t num_keys;
  uint64_t num_values;
};
static_assert(sizeof(Head) == 48);

// Then, num_tables times:
struct TableShare {
  uint32_t table;
  uint32_t kind;
  uint64_t num_keys;
  uint64_t num_values;
};
static_assert(sizeof(TableShare) == 24);

// Then, num_row_limits times:
struct Limit {
  uint32_t table;
  uint32_t oldest_kept;
};
static_assert(sizeof(Limit) == 8);

// Then keys (uint64), counts (uint32) and values (float32) of all tables.

template <typename T>
absl::string_view BytesOf(const T* data, size_t n) {
  if (n == 0) return "";  // `data` may be null
  return {reinterpret_cast<const char*>(data), n * sizeof(T)};
}

// Takes sizeof(T) * n bytes off the front of `bytes`. False where there are fewer.
template <typename T>
bool Take(absl::string_view* bytes, uint64_t n, T* out) {
  if (n > bytes->size() / sizeof(T)) return false;
  if (n > 0) std::memcpy(out, bytes->data(), n * sizeof(T));
  bytes->remove_prefix(n * sizeof(T));
  return true;
}

absl::Status Contradiction(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a push record whose ", what));
}

// Fills chunk->tables. The ranges must use up all keys and values.
absl::Status TakeTables(const Head& head, absl::string_view* bytes, wire::PushChunk* chunk) {
  uint64_t keys = 0, values = 0;
  for (uint32_t i = 0; i < head.num_tables; ++i) {
    TableShare share;
    if (!Take(bytes, 1, &share)) return Contradiction("tables are cut off");
    if (share.kind >= wire::kNumPushKinds) {
      return Contradiction(absl::StrCat("kind ", share.kind, " is unknown"));
    }
    if (share.num_keys > head.num_keys - keys || share.num_values > head.num_values - values) {
      return Contradiction("tables hold more than all of it");
    }
    chunk->tables.push_back({TableId(share.table), static_cast<wire::PushKind>(share.kind), keys,
                             share.num_keys, values, share.num_values});
    keys += share.num_keys;
    values += share.num_values;
  }
  if (keys != head.num_keys || values != head.num_values) {
    return Contradiction("tables hold less than all of it");
  }
  return absl::OkStatus();
}

}  // namespace

PushRecord::PushRecord(const wire::PushChunk& chunk) {
  const Head head = {chunk.header.rank.value(),
                     chunk.chunk,
                     chunk.num_chunks,
                     chunk.learning_rate,
                     chunk.step.value(),
                     static_cast<uint32_t>(chunk.tables.size()),
                     static_cast<uint32_t>(chunk.row_limits.size()),
                     chunk.keys.size(),
                     chunk.values.size()};
  CHECK_EQ(chunk.counts.size(), chunk.keys.size());
  absl::StrAppend(&head_, BytesOf(&head, 1));
  uint64_t keys = 0, values = 0;
  for (const wire::PushRange& range : chunk.tables) {
    CHECK_EQ(range.begin, keys);
    CHECK_EQ(range.value_begin, values);
    const TableShare share = {range.table.value(), static_cast<uint32_t>(range.kind), range.count,
                              range.value_floats};
    absl::StrAppend(&head_, BytesOf(&share, 1));
    keys += range.count;
    values += range.value_floats;
  }
  CHECK_EQ(keys, chunk.keys.size());
  CHECK_EQ(values, chunk.values.size());
  for (const wire::RowLimit& row_limit : chunk.row_limits) {
    const Limit limit = {row_limit.table.value(), row_limit.oldest_kept};
    absl::StrAppend(&head_, BytesOf(&limit, 1));
  }
  pieces_ = {head_, BytesOf(chunk.keys.data(), chunk.keys.size()),
             BytesOf(chunk.counts.data(), chunk.counts.size()),
             BytesOf(chunk.values.data(), chunk.values.size())};
}

absl::StatusOr<wire::PushChunk> DecodePushRecord(absl::string_view payload) {
  Head head;
  if (!Take(&payload, 1, &head)) return Contradiction("head is cut off");
  wire::PushChunk chunk;
  chunk.header.rank = WorkerRank(head.rank);
  chunk.chunk = head.chunk;
  chunk.num_chunks = head.num_chunks;
  chunk.learning_rate = head.learning_rate;
  chunk.step = Step(head.step);
  RETURN_IF_ERROR(TakeTables(head, &payload, &chunk));
  for (uint32_t i = 0; i < head.num_row_limits; ++i) {
    Limit limit;
    if (!Take(&payload, 1, &limit)) return Contradiction("row limits are cut off");
    chunk.row_limits.push_back({TableId(limit.table), limit.oldest_kept});
  }
  // Before anything is sized by it.
  constexpr uint64_t kBytesPerKey = sizeof(Key) + sizeof(uint32_t);
  if (head.num_keys > payload.size() / kBytesPerKey ||
      head.num_values > payload.size() / sizeof(float) ||
      head.num_keys * kBytesPerKey + head.num_values * sizeof(float) != payload.size()) {
    return Contradiction("size is not that of its keys and values");
  }
  chunk.keys.resize(head.num_keys);
  chunk.counts.resize(head.num_keys);
  chunk.values.resize(head.num_values);
  CHECK(Take(&payload, head.num_keys, chunk.keys.data()));
  CHECK(Take(&payload, head.num_keys, chunk.counts.data()));
  CHECK(Take(&payload, head.num_values, chunk.values.data()));
  return chunk;
}

}  // namespace thermocline
