#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk_env.h"
#include "common/checkpoint/listed_file.h"
#include "common/checkpoint/rows_file.h"
#include "rocksdb/perf_level.h"
#include "rocksdb/sst_file_reader.h"

namespace thermocline {
namespace {

// Enough for a disk, and little compared with the part of a table that one of many threads reads.
constexpr size_t kReadAheadBytes = 256 << 10;

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

}  // namespace

struct RowsFileReader::Rep {
  Rep(Disk* disk, std::string path, const CheckpointFile& listed)
      : disk(disk),
        path(std::move(path)),
        listed(listed),
        activity(std::make_shared<DiskActivity>()),
        env(NewDiskEnv(disk, activity)),
        sst(RowsFileOptions(env.get())) {}

  absl::Status Error(const rocksdb::Status& status) const {
    const absl::Status error = activity->error();
    return error.ok() ? DamagedFile(path, status.ToString()) : error;
  }

  Disk* const disk;
  const std::string path;
  const CheckpointFile listed;
  const std::shared_ptr<DiskActivity> activity;
  const std::unique_ptr<rocksdb::Env> env;
  rocksdb::SstFileReader sst;
  std::unique_ptr<rocksdb::Iterator> rows;
  bool positioned = false;  // `rows` is positioned at the next row.
  std::optional<RowKey> last_key;
  std::vector<float> values;
};

RowsFileReader::RowsFileReader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
RowsFileReader::~RowsFileReader() = default;

const std::string& RowsFileReader::path() const { return rep_->path; }

absl::StatusOr<std::unique_ptr<RowsFileReader>> RowsFileReader::Open(Disk* disk,
                                                                     const std::string& directory,
                                                                     const CheckpointFile& file,
                                                                     RowsFileUse use) {
  auto rep = std::make_unique<Rep>(disk, absl::StrCat(directory, "/", file.path()), file);
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> opened, OpenListedFile(disk, rep->path, file));
    RETURN_IF_ERROR(CheckTail(*opened, file, rep->path));
  }
  // Turns off counters per thread that are never read, one of every comparison of keys among them.
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  const rocksdb::Status opened = rep->sst.Open(rep->path);
  if (!opened.ok()) return rep->Error(opened);
  const auto properties = rep->sst.GetTableProperties();
  RETURN_IF_ERROR(rep->activity->error());  // RocksDB goes on without properties.
  if (properties == nullptr) return DamagedFile(rep->path, "its properties can't be read");
  if (properties->num_entries != file.rows()) {
    return DamagedFile(rep->path, absl::StrCat("it has ", properties->num_entries,
                                               " rows, the manifest says ", file.rows()));
  }
  rocksdb::ReadOptions options;
  if (use == RowsFileUse::kScan) options.readahead_size = kReadAheadBytes;
  options.fill_cache = false;
  rep->rows.reset(rep->sst.NewIterator(options));
  return std::unique_ptr<RowsFileReader>(new RowsFileReader(std::move(rep)));
}

absl::Status RowsFileReader::CheckBytes() const {
  const DiskActivity& activity = *rep_->activity;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file,
                   OpenListedFile(rep_->disk, rep_->path, rep_->listed));
  ASSIGN_OR_RETURN(const uint32_t crc,
                   Crc32cFrom(*file, activity.read_through, activity.read_crc32c));
  if (crc == rep_->listed.crc32c()) return absl::OkStatus();
  return DamagedFile(rep_->path, absl::StrFormat("its CRC-32C is %08x, the manifest says %08x", crc,
                                                 rep_->listed.crc32c()));
}

void RowsFileReader::Seek(const RowKey& key) {
  const auto bytes = EncodeRowKey(key);
  rep_->rows->Seek(rocksdb::Slice(bytes.data(), bytes.size()));
  rep_->positioned = true;
  rep_->last_key.reset();
}

absl::StatusOr<bool> RowsFileReader::Next(SavedRow* row) {
  if (rep_->positioned) {
    rep_->positioned = false;
  } else if (rep_->last_key.has_value()) {
    rep_->rows->Next();
  } else {
    rep_->rows->SeekToFirst();
  }
  if (!rep_->rows->Valid()) {
    if (!rep_->rows->status().ok()) return rep_->Error(rep_->rows->status());
    rep_->positioned = true;  // There is no later row either.
    return false;
  }
  const rocksdb::Slice key_bytes = rep_->rows->key(), value = rep_->rows->value();
  const std::optional<RowKey> key = DecodeRowKey({key_bytes.data(), key_bytes.size()});
  if (!key.has_value() ||
      !DecodeRowValue({value.data(), value.size()}, &row->lookups, &row->changed, &rep_->values)) {
    return DamagedFile(rep_->path, "a row has the wrong size");
  }
  if (!(*key == RowKeyOf(key->table, key->key))) {
    return DamagedFile(rep_->path, absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                                " is not of partition ", key->partition));
  }
  if (rep_->last_key.has_value() && !(*rep_->last_key < *key)) {
    return DamagedFile(rep_->path, absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                                " is not behind the one before it"));
  }
  rep_->last_key = row->key = *key;
  row->values = rep_->values;
  return true;
}

}  // namespace thermocline
