// Rows on disk: one RocksDB a server, shared by its tables. Keys are those of rows files
// (common/checkpoint/row_key.h).
#ifndef THERMOCLINE_SERVER_STORAGE_ROCKSDB_ROW_STORE_H_
#define THERMOCLINE_SERVER_STORAGE_ROCKSDB_ROW_STORE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/storage/row_store.h"

namespace rocksdb {
class DB;
}

namespace thermocline {

class RocksDbRowStoreOpener : public RowStoreOpener {
 public:
  // `directory`: for the database alone, made where it is missing. A database that is there is
  // removed when the first table is opened. Thread-safe.
  explicit RocksDbRowStoreOpener(std::string directory);
  ~RocksDbRowStoreOpener() override;

  absl::StatusOr<std::unique_ptr<RowStore>> Open(const TableLayout& layout) override;

 private:
  absl::Status OpenDatabase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  absl::Mutex mutex_;
  std::unique_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_ROCKSDB_ROW_STORE_H_
