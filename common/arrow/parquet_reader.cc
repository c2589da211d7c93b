#include <arrow/io/file.h>
#include <arrow/util/io_util.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/arrow/arrow_files.h"
#include "common/arrow/parquet.h"
#include "common/arrow/parquet_leaf.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

// Pages of a local file are read through buffers of this size, one for each column.
constexpr int64_t kReadBufferBytes = 256 << 10;

// Whether the file could not be read; if not, it is damaged. Arrow has one code for the errors of
// decompressors and for those of disks and stores.
bool IsReadTrouble(const std::exception& error) {
  const auto* const of_arrow = dynamic_cast<const parquet::ParquetStatusException*>(&error);
  if (of_arrow == nullptr) return false;
  return IsIoTrouble(arrow::internal::ErrnoFromStatus(of_arrow->status())) ||
         absl::StrContains(error.what(), "AWS Error");
}

class ArrowParquetFile : public ParquetFile {
 public:
  // Throws parquet::ParquetException.
  ArrowParquetFile(std::string path, bool is_remote, int64_t max_list_values,
                   std::unique_ptr<parquet::ParquetFileReader> file)
      : path_(std::move(path)),
        is_remote_(is_remote),
        max_list_values_(max_list_values),
        file_(std::move(file)) {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      leaves_.push_back(ParquetLeaf{i});
      columns_.push_back(DescribeLeaf(*schema.Column(i), &leaves_.back()));
    }
    for (int i = 0; i < file_->metadata()->num_row_groups(); ++i) {
      const int64_t rows = file_->metadata()->RowGroup(i)->num_rows();
      row_groups_.push_back(rows);
      if (rows < 0 || __builtin_add_overflow(rows_, rows, &rows_)) {
        throw parquet::ParquetException(absl::StrCat("row group ", i, " has ", rows, " rows"));
      }
    }
  }

  const std::vector<ParquetColumn>& columns() const override { return columns_; }
  const std::vector<int64_t>& row_group_rows() const override { return row_groups_; }
  int64_t rows() const override { return rows_; }

  absl::Status Seek(int64_t row, std::vector<int> columns) override {
    CHECK(row >= 0 && row <= rows_);
    selected_ = std::move(columns);
    readers_.clear();
    next_group_ = 0;
    left_ = 0;
    while (next_group_ < row_groups_.size() && row >= row_groups_[next_group_]) {
      row -= row_groups_[next_group_++];
    }
    std::vector<ParquetCells> passed;
    while (row > 0) {
      ASSIGN_OR_RETURN(const int64_t rows, Read(std::min(row, kPassedRows), &passed));
      row -= rows;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Read(int64_t rows, std::vector<ParquetCells>* cells) override {
    cells->clear();
    while (left_ == 0) {
      if (next_group_ == row_groups_.size()) return 0;
      RETURN_IF_ERROR(BeginGroup());
    }
    rows = std::min(rows, left_);
    cells->resize(selected_.size());
    for (size_t i = 0; i < selected_.size(); ++i) {
      try {
        readers_[i]->Read(rows, &(*cells)[i]);
      } catch (const ListsTooLong& error) {
        return absl::InvalidArgumentError(absl::StrCat(
            path_, ": row group ", next_group_ - 1, ", row ",
            row_groups_[next_group_ - 1] - left_ + error.row, ", column '",
            columns_[selected_[i]].name, "': with its list the lists of ", error.row + 1,
            error.row == 0 ? " row" : " rows", " have more than ", max_list_values_,
            " values together; ", rows, " rows are read at a time, those of a row group at most"));
      } catch (const std::exception& error) {
        return ReadError(columns_[selected_[i]].name, error);
      }
    }
    left_ -= rows;
    return rows;
  }

 private:
  // Rows before the wanted one are read this many at a time.
  static constexpr int64_t kPassedRows = 16384;

  absl::Status ReadError(const std::string& column, const std::exception& error) const {
    const std::string message = absl::StrCat(path_, ": row group ", next_group_ - 1, ", column '",
                                             column, "': ", error.what());
    return IsReadTrouble(error) ? absl::UnavailableError(message) : absl::DataLossError(message);
  }

  absl::Status BeginGroup() {
    const size_t group = next_group_++;
    left_ = row_groups_[group];
    readers_.clear();
    size_t i = 0;
    try {
      if (is_remote_ && !selected_.empty()) {
        std::vector<int> leaves;
        for (const int column : selected_) leaves.push_back(leaves_[column].column);
        file_->PreBuffer({static_cast<int>(group)}, leaves, arrow::io::default_io_context(),
                         arrow::io::CacheOptions::LazyDefaults());
      }
      const std::shared_ptr<parquet::RowGroupReader> reader =
          file_->RowGroup(static_cast<int>(group));
      for (; i < selected_.size(); ++i) {
        readers_.push_back(MakeLeafReader(reader.get(), leaves_[selected_[i]],
                                          columns_[selected_[i]], max_list_values_));
      }
    } catch (const std::exception& error) {
      return ReadError(selected_.empty() ? "" : columns_[selected_[i]].name, error);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const bool is_remote_;
  const int64_t max_list_values_;
  const std::unique_ptr<parquet::ParquetFileReader> file_;
  std::vector<ParquetColumn> columns_;
  std::vector<ParquetLeaf> leaves_;  // [columns_]
  std::vector<int64_t> row_groups_;
  int64_t rows_ = 0;

  std::vector<int> selected_;
  size_t next_group_ = 0;
  int64_t left_ = 0;  // How many rows of the current row group are still to be read.
  std::vector<std::unique_ptr<LeafReader>> readers_;
};

absl::StatusOr<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(const std::string& path,
                                                                      ObjectStore* store) {
  if (IsObjectPath(path)) {
    CHECK(store != nullptr);
    return static_cast<ArrowObjectStore*>(store)->OpenFile(path);
  }
  auto file = arrow::io::ReadableFile::Open(path);
  if (!file.ok()) return FromArrow(path, file.status());
  return std::shared_ptr<arrow::io::RandomAccessFile>(*std::move(file));
}

}  // namespace

absl::Status RequireArrow(absl::string_view) { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<ParquetFile>> ParquetFile::Open(const std::string& path,
                                                               ObjectStore* store,
                                                               int64_t max_list_values) {
  ASSIGN_OR_RETURN(std::shared_ptr<arrow::io::RandomAccessFile> file, OpenFile(path, store));
  try {
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();
    properties.set_buffer_size(kReadBufferBytes);
    return std::make_unique<ArrowParquetFile>(
        path, IsObjectPath(path), max_list_values,
        parquet::ParquetFileReader::Open(std::move(file), properties));
  } catch (const parquet::ParquetStatusException& error) {
    return FromArrow(path, error.status());
  } catch (const std::exception& error) {
    return absl::DataLossError(
        absl::StrCat(path, ": is no Parquet file, or is damaged or cut short: ", error.what()));
  }
}

}  // namespace thermocline
