// Reads the rows files of earlier programs, which are SST files.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk_env.h"
#include "common/checkpoint/listed_file.h"
#include "common/checkpoint/rows_readers.h"
#include "rocksdb/perf_level.h"
#include "rocksdb/sst_file_reader.h"

namespace thermocline {
namespace {

// Enough for a disk, and little compared with the part of a table that one of many threads reads.
constexpr size_t kSstReadAheadBytes = 256 << 10;

// RocksDB reads the end of a file (where its blocks lie, its properties) without verifying it
// first: with a damaged one it would allocate any size, skip checksums, or stop the process.
absl::Status CheckTail(const ReadFile& file, const CheckpointFile& listed,
                       const std::string& path) {
  if (listed.tail_bytes() > file.size()) return DamagedFile(path, "too short");
  ASSIGN_OR_RETURN(const uint32_t crc, Crc32cFrom(file, file.size() - listed.tail_bytes()));
  if (crc == listed.tail_crc32c()) return absl::OkStatus();
  return DamagedFile(path, absl::StrCat("the CRC-32C of its last ", listed.tail_bytes(),
                                        " bytes is not what the manifest says"));
}

// An open file. Of those for single rows, several readers share it.
struct SstFile {
  SstFile(Disk* disk, std::string path, const CheckpointFile& listed, RowsFileUse use)
      : disk(disk),
        path(std::move(path)),
        listed(listed),
        use(use),
        activity(std::make_shared<DiskActivity>()),
        env(NewDiskEnv(disk, activity)),
        sst(SstFileOptions(env.get())) {
    activity->counts_reads = use == RowsFileUse::kScan;
  }

  absl::Status Error(const rocksdb::Status& status) const {
    const absl::Status error = activity->error();
    return error.ok() ? DamagedFile(path, status.ToString()) : error;
  }

  Disk* const disk;
  const std::string path;
  const CheckpointFile listed;
  const RowsFileUse use;
  const std::shared_ptr<DiskActivity> activity;
  const std::unique_ptr<rocksdb::Env> env;
  rocksdb::SstFileReader sst;
};

class SstRows final : public RowsFileReader {
 public:
  explicit SstRows(std::shared_ptr<SstFile> file) : file_(std::move(file)) {
    // Turns off counters per thread that are never read, one of every comparison of keys among
    // them.
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
    rocksdb::ReadOptions options;
    if (file_->use == RowsFileUse::kScan) options.readahead_size = kSstReadAheadBytes;
    options.fill_cache = false;
    rows_.reset(file_->sst.NewIterator(options));
  }

  std::unique_ptr<RowsFileReader> Share() const override {
    CHECK(file_->use == RowsFileUse::kSingleRows);
    return std::make_unique<SstRows>(file_);
  }
  absl::StatusOr<bool> Next(SavedRow* row) override;
  void Seek(const RowKey& key) override;
  absl::flat_hash_map<TableId, uint64_t> CountRows(uint32_t, uint32_t) const override { return {}; }
  absl::Status CheckBytes() const override;
  const std::string& path() const override { return file_->path; }

 private:
  const std::shared_ptr<SstFile> file_;
  std::unique_ptr<rocksdb::Iterator> rows_;
  bool positioned_ = false;  // `rows_` is positioned at the next row.
  std::optional<RowKey> last_key_;
  std::vector<float> values_;
};

absl::Status SstRows::CheckBytes() const {
  const SstFile& file = *file_;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> opened,
                   OpenListedFile(file.disk, file.path, file.listed));
  ASSIGN_OR_RETURN(const uint32_t crc,
                   Crc32cFrom(*opened, file.activity->read_through, file.activity->read_crc32c));
  return CheckListedCrc32c(file.path, file.listed, crc);
}

void SstRows::Seek(const RowKey& key) {
  const auto bytes = EncodeRowKey(key);
  rows_->Seek(rocksdb::Slice(bytes.data(), bytes.size()));
  positioned_ = true;
  last_key_.reset();
}

absl::StatusOr<bool> SstRows::Next(SavedRow* row) {
  if (positioned_) {
    positioned_ = false;
  } else if (last_key_.has_value()) {
    rows_->Next();
  } else {
    rows_->SeekToFirst();
  }
  if (!rows_->Valid()) {
    if (!rows_->status().ok()) return file_->Error(rows_->status());
    positioned_ = true;  // There is no later row either.
    return false;
  }
  const rocksdb::Slice key_bytes = rows_->key(), value = rows_->value();
  const std::optional<RowKey> key = DecodeRowKey({key_bytes.data(), key_bytes.size()});
  if (!key.has_value() ||
      !DecodeRowValue({value.data(), value.size()}, &row->lookups, &row->changed, &values_)) {
    return DamagedFile(path(), "a row has the wrong size");
  }
  if (!(*key == RowKeyOf(key->table, key->key))) {
    return DamagedFile(path(), absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                            " is not of partition ", key->partition));
  }
  if (last_key_.has_value() && !(*last_key_ < *key)) {
    return DamagedFile(path(), absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                            " is not behind the one before it"));
  }
  last_key_ = row->key = *key;
  row->values = values_;
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenSstRows(Disk* disk, std::string path,
                                                            const CheckpointFile& listed,
                                                            RowsFileUse use) {
  const auto file = std::make_shared<SstFile>(disk, std::move(path), listed, use);
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> opened,
                     OpenListedFile(disk, file->path, listed));
    RETURN_IF_ERROR(CheckTail(*opened, listed, file->path));
  }
  const rocksdb::Status opened = file->sst.Open(file->path);
  if (!opened.ok()) return file->Error(opened);
  const auto properties = file->sst.GetTableProperties();
  RETURN_IF_ERROR(file->activity->error());  // RocksDB goes on without properties.
  if (properties == nullptr) return DamagedFile(file->path, "its properties can't be read");
  RETURN_IF_ERROR(CheckListedRows(file->path, listed, properties->num_entries));
  return std::make_unique<SstRows>(file);
}

}  // namespace thermocline
