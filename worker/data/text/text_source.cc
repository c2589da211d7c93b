#include "worker/data/text/text_source.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {

std::vector<int32_t> ShuffledOrder(uint64_t seed, uint32_t pass, int64_t block, int64_t rows) {
  std::vector<int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  const uint64_t base = Mix64(Mix64(Mix64(seed) ^ pass) ^ static_cast<uint64_t>(block));
  for (int64_t i = rows - 1; i > 0; --i) {  // Fisher and Yates
    const auto random = static_cast<unsigned __int128>(Mix64(base + static_cast<uint64_t>(i)));
    const auto other = static_cast<int64_t>(random * static_cast<uint64_t>(i + 1) >> 64);
    std::swap(order[i], order[other]);
  }
  return order;
}

RowFileSource::RowFileSource(std::vector<std::string> paths, const TextRange& range, OnScan on_scan)
    : paths_(std::move(paths)), range_(range), on_scan_(std::move(on_scan)) {
  CHECK_GE(range_.begin, 0);
  CHECK(range_.end < 0 || range_.end >= range_.begin);
}

absl::Status RowFileSource::TooFewRows(int64_t found) const {
  return absl::DataLossError(absl::StrCat(
      paths_[0],
      paths_.size() == 1 ? ": the file has "
                         : absl::StrCat(" and ", paths_.size() - 1, " more: the files have "),
      found, " rows now, but had at least ", range_.end, " when they were counted"));
}

int64_t RowFileSource::Wanted(int64_t rows) const {
  return range_.end < 0 ? rows : std::min(rows, range_.end - next_row_);
}

absl::Status RowFileSource::Rewind(uint32_t pass) {
  pass_ = pass;
  next_row_ = taken_rows_ = range_.begin;
  blocks_ = 0;
  order_.clear();
  order_position_ = 0;
  RETURN_IF_ERROR(rows_->Rewind());
  if (range_.end == range_.begin || range_.begin == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t skipped, rows_->Skip(range_.begin, on_scan_));
  return skipped == range_.begin ? absl::OkStatus() : TooFewRows(skipped);
}

absl::StatusOr<bool> RowFileSource::NextBlock() {
  const int64_t left = range_.end < 0 ? range_.shuffle_rows : range_.end - taken_rows_;
  block_.ClearText();
  ASSIGN_OR_RETURN(const int64_t rows, rows_->Append(std::min(range_.shuffle_rows, left), &block_));
  order_ = ShuffledOrder(range_.shuffle_seed, pass_, blocks_++, rows);
  order_position_ = 0;
  taken_rows_ += rows;
  return rows > 0;
}

absl::StatusOr<int64_t> RowFileSource::AppendShuffled(int64_t rows, RawBatch* raw) {
  const auto share_blocks = [this, raw] {
    raw->blocks.insert(raw->blocks.end(), block_.blocks.begin(), block_.blocks.end());
  };
  share_blocks();
  int64_t added = 0;
  for (; added < rows; ++added) {
    if (order_position_ == order_.size()) {
      ASSIGN_OR_RETURN(const bool more, NextBlock());
      if (!more) break;
      share_blocks();
    }
    AppendRow(block_, order_[order_position_++], raw);
  }
  return added;
}

absl::StatusOr<int64_t> RowFileSource::SkipShuffled(int64_t rows) {
  int64_t skipped = 0;
  while (skipped < rows) {
    const auto of_block = static_cast<int64_t>(order_.size() - order_position_);
    if (of_block > 0) {
      const int64_t count = std::min(of_block, rows - skipped);
      order_position_ += count;
      skipped += count;
    } else if (rows - skipped >= range_.shuffle_rows) {  // None of these blocks' rows is wanted.
      const int64_t blocks = (rows - skipped) / range_.shuffle_rows;
      ASSIGN_OR_RETURN(const int64_t count, rows_->Skip(blocks * range_.shuffle_rows, on_scan_));
      blocks_ += blocks;
      taken_rows_ += count;
      skipped += count;
      if (count < blocks * range_.shuffle_rows) break;
    } else {
      ASSIGN_OR_RETURN(const bool more, NextBlock());
      if (!more) break;
    }
  }
  return skipped;
}

absl::StatusOr<bool> RowFileSource::Read(int64_t batch_size, RawBatch* raw) {
  raw->ClearText();
  const int64_t wanted = Wanted(batch_size);
  if (wanted == 0) return false;
  ASSIGN_OR_RETURN(const int64_t read, range_.shuffle_rows > 0 ? AppendShuffled(wanted, raw)
                                                               : rows_->Append(wanted, raw));
  if (read < wanted && range_.end >= 0) return TooFewRows(next_row_ + read);
  raw->first_row = next_row_;
  next_row_ += read;
  raw->pass_progress = range_.end < 0 ? rows_->progress()
                                      : static_cast<double>(next_row_ - range_.begin) /
                                            static_cast<double>(range_.end - range_.begin);
  return read > 0;
}

absl::StatusOr<int64_t> RowFileSource::Skip(int64_t rows) {
  const int64_t wanted = Wanted(rows);
  ASSIGN_OR_RETURN(const int64_t skipped,
                   range_.shuffle_rows > 0 ? SkipShuffled(wanted) : rows_->Skip(wanted, on_scan_));
  if (skipped < wanted && range_.end >= 0) return TooFewRows(next_row_ + skipped);
  next_row_ += skipped;
  return skipped;
}

namespace {

absl::Span<const std::string> KeysOf(const TextFiles& files, int file) {
  if (files.keys.empty()) return {};
  return files.keys[file];
}

RowFilter FilterOf(std::shared_ptr<const TextFiles> files, std::shared_ptr<const TextParser> parser,
                   TextRange::Rows rows) {
  if (rows == TextRange::Rows::kAll) return {};
  return {[files = std::move(files), parser = std::move(parser),
           scratch = std::make_shared<LineColumns>()](absl::string_view line, int file) {
            return parser->IsHeldOut(line, KeysOf(*files, file), scratch.get());
          },
          rows == TextRange::Rows::kHeldOut};
}

}  // namespace

TextSource::TextSource(std::shared_ptr<const TextFiles> files,
                       std::shared_ptr<const TextParser> parser, const TextRange& range,
                       OnScan on_scan)
    : RowFileSource(files->paths, range, std::move(on_scan)),
      files_(std::move(files)),
      parser_(std::move(parser)) {
  SetRows(std::make_unique<RowStream>(files_, FilterOf(files_, parser_, range.rows), cancelled()));
}

absl::Status TextSource::Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) {
  parser_->ParseRows(raw, raw.slice_begin, raw.slice_end, batch, bad_rows, files_->keys);
  return absl::OkStatus();
}

absl::Status TextSource::DescribeBadRow(const RawBatch& raw, int64_t row) {
  return absl::InvalidArgumentError(
      absl::StrCat(PlaceOf(raw, row), ": ",
                   parser_->Describe(raw.TextOf(row), KeysOf(*files_, raw.OriginOf(row).file))));
}

std::string TextSource::PlaceOf(const RawBatch& raw, int64_t row) {
  const RawBatch::Origin origin = raw.OriginOf(row);
  return absl::StrCat(paths()[origin.file], ":", origin.line);
}

}  // namespace thermocline
