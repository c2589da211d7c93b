// The data plane's messages in memory. codec.h turns them into the bytes of
// proto/parameter_server.proto and back.
#ifndef THERMOCLINE_COMMON_WIRE_MESSAGES_H_
#define THERMOCLINE_COMMON_WIRE_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline::wire {

// Raised with every change after which a peer would misread a message.
inline constexpr uint32_t kProtocolVersion = 2;

enum class Readiness { kReady = 0, kNotReady = 1, kRecovering = 2 };

struct Header {
  std::string job_id;
  uint64_t generation = 0;
  WorkerRank rank;
  Step acked_through = kNoStep;
};

enum class PullKind { kTrain = 0, kRead = 1 };

// The keys of one table, as a range of PullRequest::keys.
struct KeyRange {
  TableId table;
  size_t begin = 0;
  size_t count = 0;
};

struct PullRequest {
  Header header;
  PullKind kind = PullKind::kTrain;
  Step step;
  uint32_t staleness_steps = 0;
  Step after_step = kNoStep;
  bool with_state = false;  // Rows are weights and the optimizer state.
  bool count_rows = false;  // The answer has row_counts.
  std::vector<KeyRange> tables;
  UninitializedVector<Key> keys;  // of all tables

  absl::Span<const Key> KeysOf(const KeyRange& range) const {
    return absl::MakeConstSpan(keys).subspan(range.begin, range.count);
  }
};

// kCount: keys that were looked up and have no gradient, which is not a gradient of zero: an
// optimizer with momentum would move the row.
enum class PushKind { kGradient = 0, kAssign = 1, kCount = 2 };
inline constexpr uint32_t kNumPushKinds = 3;

// One table's keys in a push; the spans borrow them.
struct PushSlice {
  TableId table;
  PushKind kind = PushKind::kGradient;
  absl::Span<const Key> keys;         // [n]
  absl::Span<const uint32_t> counts;  // [n] lookups per key
  absl::Span<const float> values;     // [n, dim]; kAssign: [n, row_floats]; kCount: none
};

// One table's share of a push chunk, as ranges of its keys, counts and values.
struct PushRange {
  TableId table;
  PushKind kind = PushKind::kGradient;
  size_t begin = 0;         // in keys and counts
  size_t count = 0;         // keys
  size_t value_begin = 0;   // in values
  size_t value_floats = 0;  // kGradient: count * dim; kAssign: count * row_floats; kCount: 0
};

// What a table with max_rows keeps: rows whose RowMeta::changed is oldest_kept or more.
struct RowLimit {
  TableId table;
  uint32_t oldest_kept = 0;

  friend bool operator==(const RowLimit& a, const RowLimit& b) {
    return a.table == b.table && a.oldest_kept == b.oldest_kept;
  }
};

// One table's rows on one server, by group of last changes (common/math/row_limit.h).
struct TableRowCounts {
  TableId table;
  std::vector<uint32_t> groups;  // [n], ascending
  std::vector<uint64_t> rows;    // [n]
};

// Chunk `chunk` of `num_chunks` of one worker's push for a step.
struct PushChunk {
  Header header;
  Step step;
  uint32_t chunk = 0;
  uint32_t num_chunks = 1;
  float learning_rate = 0;
  std::vector<RowLimit> row_limits;  // In rank 0's last chunk, at some steps.
  std::vector<PushRange> tables;
  UninitializedVector<Key> keys;         // distinct over all chunks, per table and kind
  UninitializedVector<uint32_t> counts;  // lookups per key
  UninitializedVector<float> values;

  absl::Span<const Key> KeysOf(const PushRange& range) const {
    return absl::MakeConstSpan(keys).subspan(range.begin, range.count);
  }
  absl::Span<const uint32_t> CountsOf(const PushRange& range) const {
    return absl::MakeConstSpan(counts).subspan(range.begin, range.count);
  }
  absl::Span<const float> ValuesOf(const PushRange& range) const {
    return absl::MakeConstSpan(values).subspan(range.value_begin, range.value_floats);
  }
};

struct PullAnswer {
  Readiness readiness = Readiness::kReady;
  Step complete_through = kNoStep;
  std::vector<TableRowCounts> row_counts;
};

struct PushAnswer {
  Readiness readiness = Readiness::kReady;
  Step accepted_through = kNoStep;
};

}  // namespace thermocline::wire

#endif  // THERMOCLINE_COMMON_WIRE_MESSAGES_H_
