#include "worker/data/row_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Rows that are read at a time where a filter judges them.
constexpr int64_t kFilteredRows = 1024;

absl::StatusOr<std::vector<std::string>> TakeHeader(const std::string& path,
                                                    const LineFormat& format, LineStream* lines) {
  RawBatch raw;
  raw.ClearText();
  ASSIGN_OR_RETURN(const int64_t rows, lines->Append(1, &raw));
  if (rows == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file is empty; a header is wanted"));
  }
  LineColumns columns;
  SplitLine(WithoutLineEnd(raw.TextOf(0)), format, &columns);
  if (columns.misquoted >= 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":1: column ", columns.misquoted + 1,
                                                   " of the header has a quote that is not "
                                                   "closed at its end"));
  }
  return std::vector<std::string>(columns.columns.begin(), columns.columns.end());
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadHeader(const std::string& path,
                                                    const LineFormat& format) {
  const std::atomic<bool> never{false};
  ASSIGN_OR_RETURN(const std::unique_ptr<LineStream> lines, LineStream::Open(path, &never, format));
  ASSIGN_OR_RETURN(std::vector<std::string> names, TakeHeader(path, format, lines.get()));
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t first = std::find(names.begin(), names.end(), names[i]) - names.begin();
    if (!names[i].empty() && first == i) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":1: column ", i + 1, " of the header ",
        names[i].empty() ? "has no name"
                         : absl::StrCat("is '", names[i], "', as is column ", first + 1)));
  }
  return names;
}

absl::StatusOr<int64_t> CountRows(const TextFiles& files, const OnScan& on_scan) {
  if (files.paths.size() == 1 && files.header.empty() && !files.format.quotes) {
    return CountLines(files.paths[0], on_scan);
  }
  const std::atomic<bool> never{false};
  RowStream rows(std::make_shared<TextFiles>(files), {}, &never);
  RETURN_IF_ERROR(rows.Rewind());
  return rows.Skip(INT64_MAX, on_scan);
}

void AppendRow(const RawBatch& from, int64_t row, RawBatch* to) {
  const absl::string_view text = from.TextOf(row);
  const RawBatch::Origin origin = from.OriginOf(row);
  const size_t used = to->line_begin.back();
  ReserveText(used, text.size(), &to->text);
  std::memcpy(to->text.data() + used, text.data(), text.size());
  to->AddOrigin(origin.file, origin.line);
  to->line_begin.push_back(used + text.size());
  ++to->num_rows;
}

absl::Status RowStream::Rewind() {
  next_file_ = 0;
  bytes_before_ = 0;
  lines_ = nullptr;
  read_.ClearText();
  read_row_ = 0;
  return NextFile().status();
}

absl::StatusOr<bool> RowStream::NextFile() {
  if (next_file_ == static_cast<int>(files_->paths.size())) return false;
  if (lines_ != nullptr) bytes_before_ += lines_->size();
  ASSIGN_OR_RETURN(
      lines_, LineStream::Open(files_->paths[next_file_], cancelled_, files_->format, next_file_));
  ++next_file_;
  if (!files_->header.empty()) RETURN_IF_ERROR(CheckHeader());
  return true;
}

absl::Status RowStream::CheckHeader() {
  const std::string& path = files_->paths[next_file_ - 1];
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   TakeHeader(path, files_->format, lines_.get()));
  const std::vector<std::string>& wanted = files_->header;
  if (names == wanted) return absl::OkStatus();
  if (names.size() != wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":1: the header has ", names.size(),
                                                   " columns, not ", wanted.size(), " as that of ",
                                                   files_->paths[0]));
  }
  const size_t i = std::mismatch(names.begin(), names.end(), wanted.begin()).first - names.begin();
  return absl::InvalidArgumentError(absl::StrCat(path, ":1: column ", i + 1, " of the header is '",
                                                 names[i], "', not '", wanted[i], "' as in ",
                                                 files_->paths[0]));
}

OnScan RowStream::OfAll(const OnScan& on_scan) const {
  if (!on_scan || files_->paths.size() == 1) return on_scan;
  const int64_t files = static_cast<int64_t>(files_->paths.size());
  return [&on_scan, before = bytes_before_, begun = int64_t{next_file_},
          files](const ScanProgress& progress) {
    const int64_t known = before + progress.total_bytes;
    on_scan({before + progress.done_bytes, known / begun * files, /*is_over=*/false});
  };
}

absl::StatusOr<int64_t> RowStream::SkipFiltered(int64_t count, const OnScan& on_scan) {
  int64_t skipped = 0;
  RawBatch dropped;
  while (skipped < count) {
    dropped.ClearText();
    ASSIGN_OR_RETURN(const int64_t rows,
                     Append(std::min(count - skipped, kFilteredRows), &dropped));
    if (rows == 0) break;
    skipped += rows;
    if (on_scan) OfAll(on_scan)({lines_->position(), lines_->size(), false});
  }
  return skipped;
}

absl::StatusOr<int64_t> RowStream::Skip(int64_t count, const OnScan& on_scan) {
  int64_t skipped = 0;
  if (filter_) {
    ASSIGN_OR_RETURN(skipped, SkipFiltered(count, on_scan));
  } else {
    const bool is_one = files_->paths.size() == 1;
    for (bool more = true; more && skipped < count;) {
      ASSIGN_OR_RETURN(const int64_t rows, lines_->Skip(count - skipped, OfAll(on_scan)));
      skipped += rows;
      if (is_one) return skipped;  // It has reported the end.
      if (skipped == count) break;
      ASSIGN_OR_RETURN(more, NextFile());
    }
  }
  if (on_scan) on_scan({bytes_before_ + lines_->position(), bytes_before_ + lines_->size(), true});
  return skipped;
}

absl::StatusOr<int64_t> RowStream::Append(int64_t count, RawBatch* raw) {
  int64_t added = 0;
  while (added < count) {
    if (filter_ && read_row_ < read_.num_rows) {
      if (filter_(read_.TextOf(read_row_))) {
        AppendRow(read_, read_row_, raw);
        ++added;
      }
      ++read_row_;
      continue;
    }
    int64_t rows = 0;
    if (filter_) {
      read_.ClearText();
      read_row_ = 0;
      ASSIGN_OR_RETURN(rows, lines_->Append(kFilteredRows, &read_));
    } else {
      ASSIGN_OR_RETURN(rows, lines_->Append(count - added, raw));
      added += rows;
    }
    if (rows > 0) continue;
    ASSIGN_OR_RETURN(const bool more, NextFile());
    if (!more) break;
  }
  return added;
}

double RowStream::progress() const {
  const int64_t known = bytes_before_ + lines_->size();
  if (known == 0) return 1;
  const double of_begun = static_cast<double>(bytes_before_ + lines_->position()) / known;
  return std::min(1.0, of_begun * next_file_ / files_->paths.size());
}

}  // namespace thermocline
