#include "worker/data/parquet/parquet_source.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"

namespace thermocline {
namespace {

// So many rows are decoded at a time: their columns fit the processor's cache.
constexpr int64_t kBlockRows = 8192;

// Numbers of rows are exact as doubles, too (data.split.last_share).
constexpr int64_t kTooManyRows = int64_t{1} << 53;

// The columns of a file, then the keys of its folders.
class FileInFolders : public ParquetFile {
 public:
  FileInFolders(std::unique_ptr<ParquetFile> file, const std::vector<FolderKey>& keys)
      : file_(std::move(file)), columns_(file_->columns()) {
    for (const FolderKey& key : keys) {
      ParquetColumn column;
      column.name = key.name;
      column.kind = ParquetColumn::Kind::kText;
      column.type = "key of a folder";
      columns_.push_back(std::move(column));
      auto values = std::make_shared<ParquetValues>();
      values->size = 1;
      values->is_dictionary = true;
      values->bytes.assign(key.value.begin(), key.value.end());
      values->ends.assign(1, key.value.size());
      values_.push_back(std::move(values));
    }
  }

  const std::vector<ParquetColumn>& columns() const override { return columns_; }
  const std::vector<int64_t>& row_group_rows() const override { return file_->row_group_rows(); }
  int64_t rows() const override { return file_->rows(); }

  absl::Status Seek(int64_t row, std::vector<int> columns) override {
    selected_ = std::move(columns);
    std::vector<int> own;
    for (const int column : selected_) {
      if (!IsKey(column)) own.push_back(column);
    }
    return file_->Seek(row, std::move(own));
  }

  absl::StatusOr<int64_t> Read(int64_t rows, std::vector<ParquetCells>* cells) override {
    std::vector<ParquetCells> own;
    ASSIGN_OR_RETURN(const int64_t read, file_->Read(rows, &own));
    cells->clear();
    if (read == 0) return 0;
    auto next = own.begin();
    for (const int column : selected_) {
      ParquetCells& to = cells->emplace_back();
      if (IsKey(column)) {
        to.values = values_[column - file_->columns().size()];
        to.indices.assign(static_cast<size_t>(read), 0);
      } else {
        to = std::move(*next++);
      }
    }
    return read;
  }

 private:
  bool IsKey(int column) const { return static_cast<size_t>(column) >= file_->columns().size(); }

  const std::unique_ptr<ParquetFile> file_;
  std::vector<ParquetColumn> columns_;
  std::vector<std::shared_ptr<const ParquetValues>> values_;  // [keys] The key's one value.
  std::vector<int> selected_;
};

// Reads those rows of all files that `rows` says.
class ParquetRows : public RowReader {
 public:
  // `*cancelled` must outlive this object. Once it is set, calls return kCancelled.
  ParquetRows(std::shared_ptr<const ParquetFiles> files,
              std::shared_ptr<const ParquetParser> parser, TextRange::Rows rows,
              const std::atomic<bool>* cancelled)
      : files_(std::move(files)),
        parser_(std::move(parser)),
        wanted_(rows),
        cancelled_(cancelled) {}

  absl::Status Rewind() override {
    next_file_ = 0;
    next_row_ = 0;
    done_rows_ = 0;
    file_ = nullptr;
    block_ = nullptr;
    Choose();
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan&) override {
    int64_t skipped = 0;
    for (;;) {
      const int64_t of_block = std::min<int64_t>(count - skipped, chosen_end_ - chosen_);
      chosen_ += of_block;
      skipped += of_block;
      if (skipped == count) return skipped;
      if (wanted_ == TextRange::Rows::kAll) return skipped + SkipUnread(count - skipped);
      ASSIGN_OR_RETURN(const int64_t passed, SkipBySplit(count - skipped));
      skipped += passed;
      if (skipped == count) return skipped;
      ASSIGN_OR_RETURN(const bool more, NextBlock());
      if (!more) return skipped;
    }
  }

  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw) override {
    int64_t added = 0;
    while (added < count) {
      if (chosen_ == chosen_end_) {
        ASSIGN_OR_RETURN(const bool more, NextBlock());
        if (!more) break;
        continue;
      }
      const int64_t rows = std::min<int64_t>(count - added, chosen_end_ - chosen_);
      raw->blocks.push_back(block_);
      for (int64_t i = chosen_; i < chosen_ + rows; ++i) {
        raw->column_rows.push_back(
            {block_.get(), is_all_ ? static_cast<int32_t>(i) : rows_of_block_[i]});
      }
      chosen_ += rows;
      added += rows;
    }
    raw->num_rows += added;
    return added;
  }

  double progress() const override {
    const int64_t rows = files_->all_rows();
    return rows == 0 ? 1 : static_cast<double>(done_rows_) / static_cast<double>(rows);
  }

 private:
  // Passes over rows without reading them. Returns how many.
  int64_t SkipUnread(int64_t count) {
    int64_t skipped = 0;
    while (skipped < count && next_file_ < static_cast<int>(files_->paths.size())) {
      const int64_t rows = std::min(count - skipped, files_->rows(next_file_) - next_row_);
      next_row_ += rows;
      skipped += rows;
      if (rows > 0) is_placed_ = false;
      if (next_row_ == files_->rows(next_file_)) NextFile();
    }
    done_rows_ += skipped;
    return skipped;
  }

  // Passes over whole blocks that have no more than `count` wanted rows together, and reads only
  // the column that splits rows. Returns how many wanted rows they have.
  absl::StatusOr<int64_t> SkipBySplit(int64_t count) {
    int64_t skipped = 0;
    std::vector<ParquetCells> cells;
    for (; next_file_ < static_cast<int>(files_->paths.size()); NextFile()) {
      if (file_ == nullptr) RETURN_IF_ERROR(OpenFile());
      is_placed_ = false;
      RETURN_IF_ERROR(file_->Seek(next_row_, {columns_[parser_->split_place()]}));
      for (;;) {
        if (skipped == count) return skipped;
        RETURN_IF_ERROR(CheckCancelled());
        ASSIGN_OR_RETURN(const int64_t rows, file_->Read(kBlockRows, &cells));
        if (rows == 0) break;
        int64_t wanted = 0;
        for (int64_t row = 0; row < rows; ++row) wanted += IsWanted(cells[0], row) ? 1 : 0;
        if (wanted > count - skipped) return skipped;
        skipped += wanted;
        next_row_ += rows;
        done_rows_ += rows;
      }
    }
    return skipped;
  }

  // Whether the split leaves a row to this reader. `cells` are of the column that splits rows.
  bool IsWanted(const ParquetCells& cells, int64_t row) const {
    return parser_->IsHeldOut(cells, row) == (wanted_ == TextRange::Rows::kHeldOut);
  }

  absl::Status CheckCancelled() const {
    return cancelled_->load(std::memory_order_relaxed)
               ? absl::CancelledError("reading was cancelled")
               : absl::OkStatus();
  }

  // Checks that the file is still what it was.
  absl::Status CheckFile() const {
    return files_->pinned == nullptr ? absl::OkStatus()
                                     : files_->pinned->Check(files_->paths[next_file_]);
  }

  void NextFile() {
    ++next_file_;
    next_row_ = 0;
    file_ = nullptr;
  }

  absl::Status OpenFile() {
    const std::string& path = files_->paths[next_file_];
    ASSIGN_OR_RETURN(file_, OpenParquet(path, files_->store.get()));
    RETURN_IF_ERROR(CheckFile());
    looked_at_ = -1;
    if (file_->row_group_rows() != files_->row_groups[next_file_]) {
      return absl::DataLossError(absl::StrCat(
          path, ": has ", file_->rows(), " rows now, or other row groups than the file with ",
          files_->rows(next_file_), " rows that was there when the job began"));
    }
    ASSIGN_OR_RETURN(columns_, parser_->Find(path, file_->columns()));
    is_placed_ = false;
    return absl::OkStatus();
  }

  // Decodes the next rows. Returns false at the end of all files.
  absl::StatusOr<bool> NextBlock() {
    for (; next_file_ < static_cast<int>(files_->paths.size()); NextFile()) {
      RETURN_IF_ERROR(CheckCancelled());
      if (file_ == nullptr) RETURN_IF_ERROR(OpenFile());
      if (!is_placed_) RETURN_IF_ERROR(file_->Seek(next_row_, columns_));
      is_placed_ = true;
      auto block = std::make_shared<ParquetBlock>();
      ASSIGN_OR_RETURN(block->rows, file_->Read(kBlockRows, &block->cells));
      if (block->rows == 0) {
        RETURN_IF_ERROR(CheckFile());
        continue;
      }
      block->file = next_file_;
      block->first_row = next_row_;
      for (const int64_t rows : files_->row_groups[next_file_]) {
        if (block->first_row < rows) break;
        block->first_row -= rows;
        ++block->row_group;
      }
      // Most bytes of a row group are read with its first block, so the check comes after that.
      if (block->row_group != looked_at_) RETURN_IF_ERROR(CheckFile());
      looked_at_ = block->row_group;
      parser_->ShareDictionaries(block_.get(), block.get());
      next_row_ += block->rows;
      done_rows_ += block->rows;
      block_ = std::move(block);
      Choose();
      return true;
    }
    return false;
  }

  // Sets which rows of the block are wanted.
  void Choose() {
    is_all_ = wanted_ == TextRange::Rows::kAll;
    rows_of_block_.clear();
    chosen_ = 0;
    chosen_end_ = block_ == nullptr ? 0 : block_->rows;
    if (is_all_ || block_ == nullptr) return;
    const ParquetCells& cells = block_->cells[parser_->split_place()];
    for (int64_t row = 0; row < chosen_end_; ++row) {
      if (IsWanted(cells, row)) rows_of_block_.push_back(static_cast<int32_t>(row));
    }
    chosen_end_ = static_cast<int64_t>(rows_of_block_.size());
  }

  const std::shared_ptr<const ParquetFiles> files_;
  const std::shared_ptr<const ParquetParser> parser_;
  const TextRange::Rows wanted_;
  const std::atomic<bool>* const cancelled_;

  std::unique_ptr<ParquetFile> file_;  // next_file_; null: it is not open.
  std::vector<int> columns_;           // The indices of the parser's columns in file_.
  bool is_placed_ = false;             // Whether file_ would read next_row_ next.
  int looked_at_ = -1;                 // The row group of the last block of file_.
  // The first row that is not decoded.
  int next_file_ = 0;
  int64_t next_row_ = 0;
  int64_t done_rows_ = 0;  // How many rows come before it, over all files.

  std::shared_ptr<const ParquetBlock> block_;
  bool is_all_ = true;                  // Whether all rows of block_ are wanted.
  std::vector<int32_t> rows_of_block_;  // The wanted rows, if not all are.
  int64_t chosen_ = 0, chosen_end_ = 0;
};

}  // namespace

int64_t ParquetFiles::rows(int file) const {
  return std::accumulate(row_groups[file].begin(), row_groups[file].end(), int64_t{0});
}

int64_t ParquetFiles::all_rows() const {
  int64_t all = 0;
  for (size_t i = 0; i < row_groups.size(); ++i) all += rows(static_cast<int>(i));
  return all;
}

absl::StatusOr<std::unique_ptr<ParquetFile>> OpenParquet(const std::string& path,
                                                         ObjectStore* store) {
  ASSIGN_OR_RETURN(std::unique_ptr<ParquetFile> file, ParquetFile::Open(path, store));
  std::vector<FolderKey> keys;
  for (FolderKey& key : FolderKeysOf(path)) {
    const auto& columns = file->columns();
    const bool is_own = std::any_of(columns.begin(), columns.end(),
                                    [&](const ParquetColumn& own) { return own.name == key.name; });
    if (!is_own) keys.push_back(std::move(key));
  }
  if (keys.empty()) return file;
  return std::make_unique<FileInFolders>(std::move(file), keys);
}

absl::StatusOr<ParquetFiles> OpenParquetFiles(const FoundFiles& found,
                                              std::vector<std::string> paths,
                                              const ParquetParser& parser) {
  ParquetFiles files;
  files.store = found.store;
  files.pinned = found.pinned;
  int64_t rows = 0;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::unique_ptr<ParquetFile> file, OpenParquet(path, files.store.get()));
    RETURN_IF_ERROR(parser.Find(path, file->columns()).status());
    files.row_groups.push_back(file->row_group_rows());
    if (__builtin_add_overflow(rows, file->rows(), &rows) || rows >= kTooManyRows) {
      return absl::DataLossError(absl::StrCat(path, ": with its ", file->rows(),
                                              " rows the files have more than can be counted"));
    }
  }
  files.paths = std::move(paths);
  return files;
}

ParquetSource::ParquetSource(std::shared_ptr<const ParquetFiles> files,
                             std::shared_ptr<const ParquetParser> parser, const TextRange& range)
    : RowFileSource(files->paths, range, {}), parser_(std::move(parser)) {
  SetRows(std::make_unique<ParquetRows>(std::move(files), parser_, range.rows, cancelled()));
}

absl::Status ParquetSource::Parse(const RawBatch& raw, Batch* batch,
                                  std::vector<int64_t>* bad_rows) {
  parser_->ParseRows(raw, raw.slice_begin, raw.slice_end, batch, bad_rows);
  return absl::OkStatus();
}

absl::Status ParquetSource::DescribeBadRow(const RawBatch& raw, int64_t row) {
  const RawBatch::ColumnRow& at = raw.column_rows[row];
  return absl::InvalidArgumentError(
      absl::StrCat(PlaceOf(raw, row), ": ", parser_->Describe(*at.block, at.row)));
}

std::string ParquetSource::PlaceOf(const RawBatch& raw, int64_t row) {
  const RawBatch::ColumnRow& at = raw.column_rows[row];
  return absl::StrCat(paths()[at.block->file], ": row group ", at.block->row_group, ", row ",
                      at.block->first_row + at.row);
}

}  // namespace thermocline
