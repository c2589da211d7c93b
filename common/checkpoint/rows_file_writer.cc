#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk_env.h"
#include "common/checkpoint/rows_file.h"
#include "rocksdb/sst_file_writer.h"

namespace thermocline {
namespace {

constexpr size_t kWriteBytes = 1 << 20;

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

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

}  // namespace thermocline
