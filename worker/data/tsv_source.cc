#include "worker/data/tsv_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {

TsvSource::TsvSource(std::string path, int64_t begin, int64_t end, int num_dense,
                     std::vector<std::string> feature_names, OnScan on_scan)
    : path_(std::move(path)),
      begin_(begin),
      end_(end),
      parser_(num_dense, std::move(feature_names)),
      on_scan_(std::move(on_scan)) {
  CHECK_GE(begin_, 0);
  CHECK(end_ < 0 || end_ >= begin_);
}

absl::Status TsvSource::TooFewRows(int64_t found) const {
  return absl::DataLossError(absl::StrCat(path_, ": the file has ", found,
                                          " rows now, but had at least ", end_,
                                          " when they were counted"));
}

absl::Status TsvSource::Rewind() {
  ASSIGN_OR_RETURN(lines_, LineStream::Open(path_, &cancelled_));
  next_row_ = begin_;
  if (end_ == begin_ || begin_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t skipped, lines_->Skip(begin_, on_scan_));
  return skipped == begin_ ? absl::OkStatus() : TooFewRows(skipped);
}

absl::StatusOr<bool> TsvSource::Read(int64_t batch_size, RawBatch* raw) {
  const int64_t wanted = end_ < 0 ? batch_size : std::min(batch_size, end_ - next_row_);
  if (wanted == 0) return false;
  RETURN_IF_ERROR(lines_->Read(wanted, raw));
  if (raw->num_rows < wanted && end_ >= 0) return TooFewRows(next_row_ + raw->num_rows);
  next_row_ += raw->num_rows;
  raw->pass_progress =
      end_ < 0 ? lines_->progress() : static_cast<double>(next_row_ - begin_) / (end_ - begin_);
  return raw->num_rows > 0;
}

absl::StatusOr<int64_t> TsvSource::Skip(int64_t rows) {
  const int64_t wanted = end_ < 0 ? rows : std::min(rows, end_ - next_row_);
  ASSIGN_OR_RETURN(const int64_t skipped, lines_->Skip(wanted, on_scan_));
  if (skipped < wanted && end_ >= 0) return TooFewRows(next_row_ + skipped);
  next_row_ += skipped;
  return skipped;
}

absl::Status TsvSource::Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) {
  parser_.ParseLines(raw.text.data(), raw.line_begin.data(), raw.slice_begin, raw.slice_end, batch,
                     bad_rows);
  return absl::OkStatus();
}

absl::Status TsvSource::DescribeBadRow(const RawBatch& raw, int64_t row) {
  const absl::string_view line(raw.text.data() + raw.line_begin[row],
                               raw.line_begin[row + 1] - raw.line_begin[row]);
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ":", raw.first_line + row, ": ", parser_.Describe(line)));
}

}  // namespace thermocline
