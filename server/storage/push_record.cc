#include "server/storage/push_record.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// What a payload begins with; all integers are little-endian.
struct Head {
  uint32_t rank;
  uint32_t chunk;
  uint32_t num_chunks;
  float learning_rate;
  int64_t step;
  uint32_t num_tables;
  uint32_t zero;
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
    if (share.kind > static_cast<uint32_t>(wire::PushKind::kAssign)) {
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
                     0,
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
