#include "server/storage/rocksdb_row_store.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/row_key.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/options.h"
#include "rocksdb/perf_level.h"
#include "rocksdb/slice_transform.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"

namespace thermocline {
namespace {

// RocksDB takes memory beside the tables' budgets: up to kMaxWriteBuffers buffers of rows on their
// way to files, and for each open file its index and its Bloom filter, some 2 bytes a row. There is
// no cache of blocks: rows that are read again soon are in the tables' memory, and filling a cache
// took a third of a read's time. The system's page cache is still there.
constexpr size_t kWriteBufferBytes = size_t{32} << 20;
constexpr int kMaxWriteBuffers = 4;
constexpr size_t kBlockBytes = 4096;
// Files are large, so that there are few and all stay open, with their indexes and filters in
// memory.
constexpr uint64_t kFileBytes = uint64_t{256} << 20;
// Bounds of the open files. The process needs others for sockets, logs and checkpoints.
constexpr int kMinOpenFiles = 64;
constexpr int kMaxOpenFiles = 1 << 20;
// A file is read in vain for 1% of the keys that it doesn't have.
constexpr double kBloomBitsPerKey = 10;
// The first bytes of a row's key: the table's id.
constexpr size_t kTableIdBytes = 4;

int MaxOpenFiles() {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMinOpenFiles;
  const rlim_t half = std::min<rlim_t>(limit.rlim_cur / 2, kMaxOpenFiles);
  return std::max(kMinOpenFiles, static_cast<int>(half));
}

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // Weights look like noise.
  options.write_buffer_size = kWriteBufferBytes;
  options.max_write_buffer_number = kMaxWriteBuffers;
  options.max_open_files = MaxOpenFiles();
  options.target_file_size_base = kFileBytes;
  // The database is not read again, so rows in memory need not be written.
  options.avoid_flush_during_shutdown = true;
  options.memtable_whole_key_filtering = true;
  options.memtable_prefix_bloom_size_ratio = 0.05;
  options.level_compaction_dynamic_level_bytes = true;
  options.max_background_jobs = 2;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // Rows come sorted, and the next belongs right behind the one before it.
  options.memtable_insert_with_hint_prefix_extractor.reset(
      rocksdb::NewFixedPrefixTransform(kTableIdBytes));
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  // A row that is read costs one page of the disk, not two.
  table.block_size = kBlockBytes;
  table.block_align = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kBloomBitsPerKey));
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// RocksDB counts much for each thread, such as every comparison of two keys. These counts are not
// used.
void CountNothing() { rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable); }

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(doing, ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

class RocksDbRowStore final : public RowStore {
 public:
  RocksDbRowStore(rocksdb::DB* db, const TableLayout& layout)
      : db_(db), layout_(layout), row_bytes_(StoredRowBytes(layout)) {
    const auto begin = EncodeRowKey({layout.id, 0, 0});
    begin_.assign(begin.data(), kTableIdBytes);
    end_ = begin_;
    // The next id: the last byte that can grow does. Without one the table is the last.
    while (!end_.empty() && end_.back() == '\xff') end_.pop_back();
    if (!end_.empty()) ++end_.back();
  }

  absl::Status MultiGet(absl::Span<const Key> keys, absl::Span<uint8_t> rows,
                        absl::Span<bool> found) override;
  absl::Status Write(absl::Span<const Key> keys, absl::Span<const uint8_t> rows) override;
  absl::Status Erase(absl::Span<const Key> keys) override;
  std::unique_ptr<RowCursor> NewCursor() override;
  uint64_t bytes() const override;

  // Copies a stored row. Errors: kDataLoss (its size).
  absl::Status CopyRow(const rocksdb::Slice& value, Key key, uint8_t* row) const {
    if (value.size() != row_bytes_) {
      return absl::DataLossError(absl::StrCat("table '", layout_.name, "', key ", key, " in ",
                                              db_->GetName(), ": a row of ", value.size(),
                                              " bytes instead of ", row_bytes_));
    }
    std::memcpy(row, value.data(), row_bytes_);
    return absl::OkStatus();
  }
  // Errors: those of Write. `doing` some rows.
  absl::Status Commit(rocksdb::WriteBatch* batch, absl::string_view doing, size_t num_rows);
  // The keys as the database has them, each with its position, in the order of the database.
  using SortedKeys = std::vector<std::pair<RowKey, size_t>>;
  SortedKeys Sorted(absl::Span<const Key> keys) const {
    SortedKeys sorted(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) sorted[i] = {RowKeyOf(layout_.id, keys[i]), i};
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    return sorted;
  }
  std::string Doing(absl::string_view what, size_t num_rows) const {
    return absl::StrCat("table '", layout_.name, "': ", what, " ", num_rows, " rows in ",
                        db_->GetName());
  }

  rocksdb::DB* const db_;
  const TableLayout layout_;
  const size_t row_bytes_;
  std::string begin_;  // No key of the table is before.
  std::string end_;    // No key of the table is here or behind; empty: no key at all.
};

class RocksDbRowCursor final : public RowCursor {
 public:
  explicit RocksDbRowCursor(RocksDbRowStore* store)
      : store_(store), snapshot_(store->db_->GetSnapshot()), end_(store->end_) {}
  ~RocksDbRowCursor() override {
    iterator_.reset();
    store_->db_->ReleaseSnapshot(snapshot_);
  }

  absl::Status Next(size_t max_rows, std::vector<Key>* keys,
                    UninitializedVector<uint8_t>* rows) override {
    if (iterator_ == nullptr) Begin();
    keys->clear();
    rows->resize(max_rows * store_->row_bytes_);
    for (; keys->size() < max_rows && iterator_->Valid(); iterator_->Next()) {
      const rocksdb::Slice key = iterator_->key();
      const auto decoded = DecodeRowKey({key.data(), key.size()});
      if (!decoded.has_value()) return absl::DataLossError(store_->Doing("a bad key among", 1));
      uint8_t* row = rows->data() + keys->size() * store_->row_bytes_;
      RETURN_IF_ERROR(store_->CopyRow(iterator_->value(), decoded->key, row));
      keys->push_back(decoded->key);
    }
    rows->resize(keys->size() * store_->row_bytes_);
    return ToStatus(iterator_->status(), store_->Doing("reading", max_rows));
  }

 private:
  void Begin() {
    rocksdb::ReadOptions options;
    options.snapshot = snapshot_;
    options.fill_cache = false;
    if (!end_.empty()) options.iterate_upper_bound = &end_slice_;
    iterator_.reset(store_->db_->NewIterator(options));
    iterator_->Seek(store_->begin_);
  }

  RocksDbRowStore* const store_;
  const rocksdb::Snapshot* const snapshot_;
  const std::string end_;
  const rocksdb::Slice end_slice_{end_};
  std::unique_ptr<rocksdb::Iterator> iterator_;
};

absl::Status RocksDbRowStore::MultiGet(absl::Span<const Key> keys, absl::Span<uint8_t> rows,
                                       absl::Span<bool> found) {
  const size_t n = keys.size();
  CHECK_EQ(rows.size(), n * row_bytes_);
  CHECK_EQ(found.size(), n);
  CountNothing();
  const SortedKeys sorted = Sorted(keys);
  std::vector<std::array<char, kRowKeyBytes>> encoded(n);
  std::vector<rocksdb::Slice> slices(n);
  for (size_t i = 0; i < n; ++i) {
    encoded[i] = EncodeRowKey(sorted[i].first);
    slices[i] = {encoded[i].data(), kRowKeyBytes};
  }
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  db_->MultiGet(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), n, slices.data(), values.data(),
                statuses.data(), /*sorted_input=*/true);
  for (size_t i = 0; i < n; ++i) {
    const size_t at = sorted[i].second;
    found[at] = !statuses[i].IsNotFound();
    if (!found[at]) continue;
    RETURN_IF_ERROR(ToStatus(statuses[i], Doing("reading", n)));
    RETURN_IF_ERROR(CopyRow(values[i], keys[at], rows.data() + at * row_bytes_));
  }
  return absl::OkStatus();
}

absl::Status RocksDbRowStore::Write(absl::Span<const Key> keys, absl::Span<const uint8_t> rows) {
  CHECK_EQ(rows.size(), keys.size() * row_bytes_);
  CountNothing();
  rocksdb::WriteBatch batch(keys.size() * (kRowKeyBytes + row_bytes_ + 16));
  for (const auto& [row_key, i] : Sorted(keys)) {
    const auto key = EncodeRowKey(row_key);
    batch.Put({key.data(), key.size()},
              {reinterpret_cast<const char*>(rows.data()) + i * row_bytes_, row_bytes_});
  }
  return Commit(&batch, "writing", keys.size());
}

absl::Status RocksDbRowStore::Erase(absl::Span<const Key> keys) {
  CountNothing();
  rocksdb::WriteBatch batch;
  for (const auto& [row_key, i] : Sorted(keys)) {
    const auto key = EncodeRowKey(row_key);
    batch.Delete({key.data(), key.size()});
  }
  return Commit(&batch, "removing", keys.size());
}

absl::Status RocksDbRowStore::Commit(rocksdb::WriteBatch* batch, absl::string_view doing,
                                     size_t num_rows) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  const rocksdb::Status written = db_->Write(options, batch);
  // Once a file couldn't be written, every write fails until Resume() is called.
  if (written.IsNoSpace() && db_->Resume().ok()) {
    return ToStatus(db_->Write(options, batch), Doing(doing, num_rows));
  }
  return ToStatus(written, Doing(doing, num_rows));
}

std::unique_ptr<RowCursor> RocksDbRowStore::NewCursor() {
  return std::make_unique<RocksDbRowCursor>(this);
}

uint64_t RocksDbRowStore::bytes() const {
  rocksdb::SizeApproximationOptions options;
  options.include_memtables = true;
  const std::string end = end_.empty() ? std::string(kRowKeyBytes + 1, '\xff') : end_;
  const rocksdb::Range range(begin_, end);
  uint64_t bytes = 0;
  const rocksdb::Status status =
      db_->GetApproximateSizes(options, db_->DefaultColumnFamily(), &range, 1, &bytes);
  return status.ok() ? bytes : 0;
}

}  // namespace

RocksDbRowStoreOpener::RocksDbRowStoreOpener(std::string directory)
    : directory_(std::move(directory)) {}

RocksDbRowStoreOpener::~RocksDbRowStoreOpener() {
  absl::MutexLock lock(&mutex_);
  // A compaction may take long, and is not needed any more.
  if (db_ != nullptr) rocksdb::CancelAllBackgroundWork(db_.get(), /*wait=*/true);
}

absl::Status RocksDbRowStoreOpener::OpenDatabase() {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("making ", directory_, ": ", error.message()));
  }
  const rocksdb::Options options = DatabaseOptions();
  RETURN_IF_ERROR(
      ToStatus(rocksdb::DestroyDB(directory_, options), absl::StrCat("emptying ", directory_)));
  rocksdb::DB* db = nullptr;
  RETURN_IF_ERROR(
      ToStatus(rocksdb::DB::Open(options, directory_, &db), absl::StrCat("opening ", directory_)));
  db_.reset(db);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowStore>> RocksDbRowStoreOpener::Open(const TableLayout& layout) {
  absl::MutexLock lock(&mutex_);
  if (db_ == nullptr) RETURN_IF_ERROR(OpenDatabase());
  return std::make_unique<RocksDbRowStore>(db_.get(), layout);
}

}  // namespace thermocline
