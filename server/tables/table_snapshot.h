// The rows of a table as they were between two steps, read while later steps change them.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_SNAPSHOT_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_SNAPSHOT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

struct SnapshotRows {
  std::vector<Key> keys;            // [n]
  std::vector<uint32_t> counts;     // [n] lookups
  std::vector<uint32_t> changed;    // [n] steps of the last change, plus 1
  std::vector<char> has_row;        // [n] 0: the key is a candidate, and has no row yet
  UninitializedVector<float> rows;  // [n, row_floats]: weights, then optimizer state
};

// EmbeddingTable::BeginSnapshot makes it; destroying it ends the snapshot, read or not. The table
// outlives it. Not thread-safe, but the table may be used meanwhile in every way but LoadRows and
// LoadCandidates.
class TableSnapshot {
 public:
  virtual ~TableSnapshot() = default;

  // Replaces `*rows` by the next few thousand rows, in the order of (partition, key). False: there
  // are no more, and `*rows` is empty. The first call collects the keys, which takes about a second
  // for 10 million rows. Errors: those of reading spilled rows; the snapshot can't be used after
  // one.
  virtual absl::StatusOr<bool> Next(SnapshotRows* rows) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_SNAPSHOT_H_
