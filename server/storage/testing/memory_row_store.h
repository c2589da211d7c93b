// A RowStore in a map: for tests and the simulation.
#ifndef THERMOCLINE_SERVER_STORAGE_TESTING_MEMORY_ROW_STORE_H_
#define THERMOCLINE_SERVER_STORAGE_TESTING_MEMORY_ROW_STORE_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/storage/row_store.h"

namespace thermocline {

class MemoryRowStore : public RowStore {
 public:
  explicit MemoryRowStore(const TableLayout& layout);

  absl::Status MultiGet(absl::Span<const Key> keys, absl::Span<uint8_t> rows,
                        absl::Span<bool> found) override;
  absl::Status Write(absl::Span<const Key> keys, absl::Span<const uint8_t> rows) override;
  absl::Status Erase(absl::Span<const Key> keys) override;
  std::unique_ptr<RowCursor> NewCursor() override;
  uint64_t bytes() const override;

  // All later reads, or writes, return this error and do nothing, until it is OK again.
  void FailReads(const absl::Status& status);
  void FailWrites(const absl::Status& status);

 private:
  using Place = std::pair<uint32_t, Key>;  // partition, key
  class Cursor;

  Place PlaceOf(Key key) const;

  const uint64_t table_salt_;
  const size_t row_bytes_;
  mutable absl::Mutex mutex_;
  std::map<Place, std::string> rows_ ABSL_GUARDED_BY(mutex_);
  absl::Status read_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_error_ ABSL_GUARDED_BY(mutex_);
};

class MemoryRowStoreOpener : public RowStoreOpener {
 public:
  absl::StatusOr<std::unique_ptr<RowStore>> Open(const TableLayout& layout) override {
    return std::make_unique<MemoryRowStore>(layout);
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_TESTING_MEMORY_ROW_STORE_H_
