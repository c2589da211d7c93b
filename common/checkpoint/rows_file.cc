#include "common/checkpoint/rows_file.h"

#include <algorithm>
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

template <typename T>
void AppendTo(absl::Span<const T> values, std::vector<T>* column) {
  column->insert(column->end(), values.begin(), values.end());
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

absl::Status RowsFileWriter::Add(TableId table, Key key, uint32_t lookups, uint32_t changed,
                                 absl::Span<const float> row) {
  const char has_row = row.empty() ? 0 : 1;
  return AddRows(table, row.size(), {{&key, 1}, {&lookups, 1}, {&changed, 1}, {&has_row, 1}, row});
}

absl::Status RowsFileWriter::AddRows(TableId table, size_t row_floats, const RowColumns& rows) {
  const size_t n = rows.keys.size();
  CHECK_EQ(rows.floats.size(), n * row_floats);
  for (const Key number : rows.keys) {
    const RowKey key = RowKeyOf(table, number);
    CHECK(footer_.rows == 0 || last_key_ < key);
    last_key_ = key;
    ++footer_.rows;
  }
  for (size_t at = 0; at < n;) {
    const bool has_row = rows.has_row[at] != 0;
    const size_t floats = has_row ? row_floats : 0;
    const auto other = std::find(rows.has_row.begin() + at, rows.has_row.end(), has_row ? 0 : 1);
    const size_t taken = BlockTakes(table, other - rows.has_row.begin() - at, floats);
    if (taken == 0) {
      RETURN_IF_ERROR(WriteBlock());
      continue;
    }
    RowsBlock block = BlockWith(taken, floats);
    if (block.candidates > 0) {
      kinds_.resize(block_.rows, kKindRow);
      kinds_.resize(block.rows, has_row ? kKindRow : kKindCandidate);
    }
    if (block_.rows == 0) {
      block.table = table;
      block.first_key = rows.keys[at];
    }
    block_ = block;
    AppendTo(rows.keys.subspan(at, taken), &keys_);
    AppendTo(rows.lookups.subspan(at, taken), &lookups_);
    AppendTo(rows.changed.subspan(at, taken), &changed_);
    AppendTo(rows.floats.subspan(at * row_floats, taken * floats), &values_);
    at += taken;
  }
  return absl::OkStatus();
}

size_t RowsFileWriter::BlockTakes(TableId table, size_t rows, size_t floats) const {
  size_t least = 1, most = rows;
  if (block_.rows > 0) {
    if (block_.table != table) return 0;
    if (floats > 0 && block_.floats > 0 && floats != block_.floats) return 0;
    least = 0;
  }
  while (least < most) {
    const size_t middle = most - (most - least) / 2;
    if (BlockWith(middle, floats).bytes() <= kMaxRowsBlockBytes) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

RowsBlock RowsFileWriter::BlockWith(size_t rows, size_t floats) const {
  RowsBlock block = block_;
  block.rows += static_cast<uint32_t>(rows);
  if (floats == 0) block.candidates += static_cast<uint32_t>(rows);
  if (floats > 0) block.floats = static_cast<uint32_t>(floats);
  return block;
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
