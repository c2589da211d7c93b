#include "common/checkpoint/rows_file.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/rows_readers.h"

namespace thermocline {
namespace {

template <typename T>
absl::string_view BytesOf(const std::vector<T>& column) {
  return {reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T)};
}

}  // namespace

RowsFileWriter::~RowsFileWriter() {
  if (finished_) return;
  // Best effort: leftovers are removed with old checkpoints, too.
  file_.reset();
  disk_->Remove(full_path_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<RowsFileWriter>> RowsFileWriter::Create(Disk* disk,
                                                                       const std::string& directory,
                                                                       std::string path) {
  std::string full_path = absl::StrCat(directory, "/", path);
  RETURN_IF_ERROR(CreateDirectories(disk, FolderOf(full_path)));
  const absl::Status removed = disk->Remove(full_path);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  std::unique_ptr<RowsFileWriter> writer(
      new RowsFileWriter(disk, std::move(path), std::move(full_path)));
  ASSIGN_OR_RETURN(writer->file_, disk->CreateStream(writer->full_path_));
  const auto header = EncodeRowsHeader();
  RETURN_IF_ERROR(
      writer->Append({{header.data(), header.size()}}, Crc32c(header.data(), header.size())));
  return writer;
}

bool RowsFileWriter::BlockTakes(TableId table, size_t floats) const {
  if (block_.rows == 0) return true;
  if (block_.table != table) return false;
  if (floats > 0 && block_.floats > 0 && floats != block_.floats) return false;
  RowsBlock larger = block_;
  ++larger.rows;
  if (floats == 0) ++larger.candidates;
  if (floats > 0) larger.floats = static_cast<uint32_t>(floats);
  return larger.bytes() <= kMaxRowsBlockBytes;
}

absl::Status RowsFileWriter::Add(const RowKey& key, uint32_t lookups, uint32_t changed,
                                 absl::Span<const float> row) {
  CHECK(footer_.rows == 0 || last_key_ < key);
  if (!BlockTakes(key.table, row.size())) RETURN_IF_ERROR(WriteBlock());
  if (block_.rows == 0) {
    block_.table = key.table;
    block_.first_key = key.key;
  }
  if (row.empty()) {
    ++block_.candidates;
    kinds_.resize(block_.rows, kKindRow);
  } else {
    block_.floats = static_cast<uint32_t>(row.size());
    values_.insert(values_.end(), row.begin(), row.end());
  }
  if (block_.candidates > 0) kinds_.push_back(row.empty() ? kKindCandidate : kKindRow);
  keys_.push_back(key.key);
  lookups_.push_back(lookups);
  changed_.push_back(changed);
  ++block_.rows;
  last_key_ = key;
  ++footer_.rows;
  return absl::OkStatus();
}

absl::Status RowsFileWriter::WriteBlock() {
  kinds_.resize(RowsBlock::PaddedTo8(kinds_.size()));
  values_.resize(values_.size() + values_.size() % 2);
  const absl::string_view pieces[] = {BytesOf(keys_), BytesOf(lookups_), BytesOf(changed_),
                                      BytesOf(kinds_), BytesOf(values_)};
  block_.crc32c = 0;
  for (const absl::string_view piece : pieces) {
    block_.crc32c = ExtendCrc32c(block_.crc32c, piece.data(), piece.size());
  }
  const uint64_t bytes_before = bytes_;
  RETURN_IF_ERROR(Append(pieces, block_.crc32c));
  CHECK_EQ(bytes_ - bytes_before, block_.bytes());
  AppendRowsBlockEntry(block_, &index_);
  ++footer_.blocks;
  block_ = RowsBlock();
  keys_.clear();
  lookups_.clear();
  changed_.clear();
  kinds_.clear();
  values_.clear();
  return absl::OkStatus();
}

absl::Status RowsFileWriter::Append(absl::Span<const absl::string_view> pieces, uint32_t crc32c) {
  RETURN_IF_ERROR(file_->Append(pieces));
  const uint64_t before = bytes_;
  for (const absl::string_view piece : pieces) bytes_ += piece.size();
  footer_.crc32c = CombineCrc32c(footer_.crc32c, crc32c, bytes_ - before);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CheckpointFile>> RowsFileWriter::Finish() {
  CHECK(!finished_);
  if (rows() == 0) {
    finished_ = true;
    file_.reset();
    RETURN_IF_ERROR(disk_->Remove(full_path_));
    return std::nullopt;
  }
  RETURN_IF_ERROR(WriteBlock());
  footer_.index_crc32c = Crc32c(index_.data(), index_.size());
  RETURN_IF_ERROR(Append({index_}, footer_.index_crc32c));
  const auto footer = EncodeRowsFooter(footer_);
  RETURN_IF_ERROR(Append({{footer.data(), footer.size()}}, Crc32c(footer.data(), footer.size())));
  RETURN_IF_ERROR(file_->Sync());
  RETURN_IF_ERROR(disk_->SyncDirectory(FolderOf(full_path_)));
  finished_ = true;
  file_.reset();
  CheckpointFile file;
  file.set_path(path_);
  file.set_bytes(bytes_);
  file.set_crc32c(footer_.crc32c);
  file.set_rows(rows());
  return file;
}

absl::StatusOr<std::unique_ptr<RowsFileReader>> RowsFileReader::Open(Disk* disk,
                                                                     const std::string& directory,
                                                                     const CheckpointFile& file,
                                                                     RowsFileUse use) {
  std::string path = absl::StrCat(directory, "/", file.path());
  if (absl::EndsWith(path, kSstFileSuffix)) {
    return OpenSstRows(disk, std::move(path), file, use);
  }
  return OpenColumnRows(disk, std::move(path), file, use);
}

}  // namespace thermocline
