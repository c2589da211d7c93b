#include "common/checkpoint/rows_file.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk_env.h"
#include "common/checkpoint/listed_file.h"
#include "rocksdb/perf_level.h"
#include "rocksdb/sst_file_reader.h"
#include "rocksdb/sst_file_writer.h"

namespace thermocline {
namespace {

constexpr size_t kWriteBytes = 1 << 20;

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

struct RowsFileWriter::Rep {
  Rep(Disk* disk, std::string directory, std::string path)
      : disk(disk),
        path(std::move(path)),
        full_path(absl::StrCat(directory, "/", this->path)),
        activity(std::make_shared<DiskActivity>()),
        env(NewDiskEnv(disk, activity)) {
    rocksdb::EnvOptions env_options;
    env_options.writable_file_max_buffer_size = kWriteBytes;
    sst.emplace(env_options, RowsFileOptions(env.get()), nullptr, /*invalidate_page_cache=*/false);
  }

  // The Disk's own error, where there is one.
  absl::Status Error(const rocksdb::Status& status) const {
    RETURN_IF_ERROR(activity->error());
    return absl::InternalError(absl::StrCat("can't write '", full_path, "': ", status.ToString()));
  }
  // Best effort: leftovers are removed with old checkpoints, too.
  void Discard() {
    sst.reset();
    disk->Remove(full_path).IgnoreError();
  }

  Disk* const disk;
  const std::string path;
  const std::string full_path;
  const std::shared_ptr<DiskActivity> activity;
  const std::unique_ptr<rocksdb::Env> env;
  std::optional<rocksdb::SstFileWriter> sst;
  RowKey last_key;
  uint64_t rows = 0;
  std::string value;
  bool finished = false;
};

RowsFileWriter::RowsFileWriter(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

RowsFileWriter::~RowsFileWriter() {
  if (!rep_->finished) rep_->Discard();
}

absl::StatusOr<std::unique_ptr<RowsFileWriter>> RowsFileWriter::Create(Disk* disk,
                                                                       std::string directory,
                                                                       std::string path) {
  auto rep = std::make_unique<Rep>(disk, std::move(directory), std::move(path));
  RETURN_IF_ERROR(CreateDirectories(disk, FolderOf(rep->full_path)));
  const rocksdb::Status opened = rep->sst->Open(rep->full_path);
  if (!opened.ok()) return rep->Error(opened);
  return std::unique_ptr<RowsFileWriter>(new RowsFileWriter(std::move(rep)));
}

absl::Status RowsFileWriter::Add(const RowKey& key, uint32_t lookups, uint32_t changed,
                                 absl::Span<const float> row) {
  CHECK(rep_->rows == 0 || rep_->last_key < key);
  const auto key_bytes = EncodeRowKey(key);
  rep_->value.resize(RowValueBytes(row.size()));
  EncodeRowValue(lookups, changed, row, absl::MakeSpan(&rep_->value[0], rep_->value.size()));
  const rocksdb::Status put =
      rep_->sst->Put(rocksdb::Slice(key_bytes.data(), key_bytes.size()), rep_->value);
  if (!put.ok()) return rep_->Error(put);
  rep_->last_key = key;
  ++rep_->rows;
  return absl::OkStatus();
}

uint64_t RowsFileWriter::rows() const { return rep_->rows; }

absl::StatusOr<std::optional<CheckpointFile>> RowsFileWriter::Finish() {
  CHECK(!rep_->finished);
  if (rep_->rows == 0) {  // RocksDB makes no empty files.
    rep_->finished = true;
    rep_->sst.reset();
    RETURN_IF_ERROR(rep_->disk->Remove(rep_->full_path));
    return std::nullopt;
  }
  DiskActivity& activity = *rep_->activity;
  activity.tail_begin = rep_->sst->FileSize();
  CHECK_LE(activity.bytes, activity.tail_begin);
  const rocksdb::Status finished = rep_->sst->Finish();
  if (!finished.ok()) return rep_->Error(finished);
  RETURN_IF_ERROR(rep_->disk->SyncDirectory(FolderOf(rep_->full_path)));
  rep_->finished = true;
  CheckpointFile file;
  file.set_path(rep_->path);
  file.set_bytes(activity.bytes);
  file.set_crc32c(activity.crc32c);
  file.set_rows(rep_->rows);
  file.set_tail_bytes(activity.bytes - activity.tail_begin);
  file.set_tail_crc32c(activity.tail_crc32c);
  return file;
}

// Reading
// ------------------------------------------------------------------------------------------------

// An open file. Of those for single rows, several readers share it.
struct RowsFileReader::File {
  File(Disk* disk, std::string path, const CheckpointFile& listed, RowsFileUse use)
      : disk(disk),
        path(std::move(path)),
        listed(listed),
        use(use),
        activity(std::make_shared<DiskActivity>()),
        env(NewDiskEnv(disk, activity)),
        sst(RowsFileOptions(env.get())) {
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

// A place in it.
struct RowsFileReader::Rep {
  explicit Rep(std::shared_ptr<File> of) : file(std::move(of)) {
    // Turns off counters per thread that are never read, one of every comparison of keys among
    // them.
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
    rocksdb::ReadOptions options;
    if (file->use == RowsFileUse::kScan) options.readahead_size = kReadAheadBytes;
    options.fill_cache = false;
    rows.reset(file->sst.NewIterator(options));
  }

  const std::shared_ptr<File> file;
  std::unique_ptr<rocksdb::Iterator> rows;
  bool positioned = false;  // `rows` is positioned at the next row.
  std::optional<RowKey> last_key;
  std::vector<float> values;
};

RowsFileReader::RowsFileReader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
RowsFileReader::~RowsFileReader() = default;

const std::string& RowsFileReader::path() const { return rep_->file->path; }

absl::StatusOr<std::unique_ptr<RowsFileReader>> RowsFileReader::Open(Disk* disk,
                                                                     const std::string& directory,
                                                                     const CheckpointFile& listed,
                                                                     RowsFileUse use) {
  const auto file =
      std::make_shared<File>(disk, absl::StrCat(directory, "/", listed.path()), listed, use);
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
  if (properties->num_entries != listed.rows()) {
    return DamagedFile(file->path, absl::StrCat("it has ", properties->num_entries,
                                                " rows, the manifest says ", listed.rows()));
  }
  return std::unique_ptr<RowsFileReader>(new RowsFileReader(std::make_unique<Rep>(file)));
}

std::unique_ptr<RowsFileReader> RowsFileReader::Share() const {
  CHECK(rep_->file->use == RowsFileUse::kSingleRows);
  return std::unique_ptr<RowsFileReader>(new RowsFileReader(std::make_unique<Rep>(rep_->file)));
}

absl::Status RowsFileReader::CheckBytes() const {
  const File& file = *rep_->file;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> opened,
                   OpenListedFile(file.disk, file.path, file.listed));
  ASSIGN_OR_RETURN(const uint32_t crc,
                   Crc32cFrom(*opened, file.activity->read_through, file.activity->read_crc32c));
  if (crc == file.listed.crc32c()) return absl::OkStatus();
  return DamagedFile(file.path, absl::StrFormat("its CRC-32C is %08x, the manifest says %08x", crc,
                                                file.listed.crc32c()));
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
    if (!rep_->rows->status().ok()) return rep_->file->Error(rep_->rows->status());
    rep_->positioned = true;  // There is no later row either.
    return false;
  }
  const rocksdb::Slice key_bytes = rep_->rows->key(), value = rep_->rows->value();
  const std::optional<RowKey> key = DecodeRowKey({key_bytes.data(), key_bytes.size()});
  if (!key.has_value() ||
      !DecodeRowValue({value.data(), value.size()}, &row->lookups, &row->changed, &rep_->values)) {
    return DamagedFile(path(), "a row has the wrong size");
  }
  if (!(*key == RowKeyOf(key->table, key->key))) {
    return DamagedFile(path(), absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                            " is not of partition ", key->partition));
  }
  if (rep_->last_key.has_value() && !(*rep_->last_key < *key)) {
    return DamagedFile(path(), absl::StrCat("key ", key->key, " of table ", key->table.value(),
                                            " is not behind the one before it"));
  }
  rep_->last_key = row->key = *key;
  row->values = rep_->values;
  return true;
}

}  // namespace thermocline
