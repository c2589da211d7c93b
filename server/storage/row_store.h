// The rows of one table on one server that are not in memory.
//
// The store is empty at first and is never recovered from: after a restart, rows come from a
// checkpoint and the push log. Implementations: RocksDbRowStore; MemoryRowStore for tests and the
// simulation.
#ifndef THERMOCLINE_SERVER_STORAGE_ROW_STORE_H_
#define THERMOCLINE_SERVER_STORAGE_ROW_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "common/checkpoint/row_key.h"
#include "common/math/table_spec.h"

namespace thermocline {

// A stored row has the bytes of a row in a checkpoint: lookups, step of the last change plus 1,
// then the row's floats.
inline size_t StoredRowBytes(const TableLayout& layout) {
  return RowValueBytes(static_cast<size_t>(layout.row_floats()));
}

// Reads the rows of a store as they were when the cursor was made, in the order of (partition,
// key). Not thread-safe; the store outlives it.
class RowCursor {
 public:
  virtual ~RowCursor() = default;

  // Replaces `*keys` [n] and `*rows` [n, row_bytes] by the next rows, at most `max_rows`. n is 0 at
  // the end. Errors: those of RowStore::MultiGet.
  virtual absl::Status Next(size_t max_rows, std::vector<Key>* keys,
                            UninitializedVector<uint8_t>* rows) = 0;
};

// Thread-safe. The keys of one call are distinct.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Reads the rows of `keys`. found[i] tells whether keys[i] exists; the bytes of a missing row are
  // left unchanged. REQUIRES: rows.size() == keys.size() * row_bytes
  // Errors: kDataLoss (a stored row has the wrong size or checksum), kUnavailable (the disk).
  virtual absl::Status MultiGet(absl::Span<const Key> keys,   // [n]
                                absl::Span<uint8_t> rows,     // [n, row_bytes]
                                absl::Span<bool> found) = 0;  // [n]

  // Writes or overwrites all rows or, with an error, none.
  // Errors: kResourceExhausted (the disk is full), kUnavailable, kDataLoss.
  virtual absl::Status Write(absl::Span<const Key> keys,           // [n]
                             absl::Span<const uint8_t> rows) = 0;  // [n, row_bytes]

  // Removes rows and frees their room. Missing rows are no error. Errors: as Write.
  virtual absl::Status Erase(absl::Span<const Key> keys) = 0;

  // The cursor sees the rows as they are now. Takes no time: rows are read as they are asked for.
  virtual std::unique_ptr<RowCursor> NewCursor() = 0;

  // Approximate bytes on the disk.
  virtual uint64_t bytes() const = 0;
};

// Makes the stores of a server's tables.
class RowStoreOpener {
 public:
  virtual ~RowStoreOpener() = default;

  // Makes an empty store, once for each table. The opener outlives it.
  // Errors: kUnavailable (the disk; in use by another process).
  virtual absl::StatusOr<std::unique_ptr<RowStore>> Open(const TableLayout& layout) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_ROW_STORE_H_
