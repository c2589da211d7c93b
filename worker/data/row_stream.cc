#include "worker/data/row_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// So many rows are read at a time for a filter, and between two places that may be noted.
constexpr int64_t kRowsAtATime = 1024;

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
                                                    const LineFormat& format, ObjectStore* store) {
  const std::atomic<bool> never{false};
  ASSIGN_OR_RETURN(const std::unique_ptr<LineStream> lines,
                   LineStream::Open(path, &never, format, /*file=*/0, store));
  ASSIGN_OR_RETURN(std::vector<std::string> names, TakeHeader(path, format, lines.get()));
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t first = std::find(names.begin(), names.end(), names[i]) - names.begin();
    // A data frame writes its index as a first column without a name.
    if (first == i && (!names[i].empty() || (i == 0 && names.size() > 1))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":1: column ", i + 1, " of the header ",
        names[i].empty() ? "has no name"
                         : absl::StrCat("is '", names[i], "', as is column ", first + 1)));
  }
  return names;
}

absl::StatusOr<int64_t> CountRows(std::shared_ptr<const TextFiles> files, const OnScan& on_scan) {
  const std::atomic<bool> never{false};
  RowStream rows(std::move(files), {}, &never);
  RETURN_IF_ERROR(rows.Rewind());
  return rows.Skip(INT64_MAX, on_scan);
}

void AppendRow(const RawBatch& from, int64_t row, RawBatch* to) {
  if (!from.column_rows.empty()) {
    to->column_rows.push_back(from.column_rows[row]);
    ++to->num_rows;
    return;
  }
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
  return NextFile().status();
}

TextIndex* RowStream::index() const {
  return version_ > 0 ? files_->indexes[next_file_ - 1].get() : nullptr;
}

absl::StatusOr<bool> RowStream::NextFile() {
  if (next_file_ == static_cast<int>(files_->paths.size())) return false;
  if (lines_ != nullptr) bytes_before_ += lines_->size();
  ++next_file_;
  version_ = files_->indexes.empty() ? 0 : files_->indexes[next_file_ - 1]->Prepare();
  RETURN_IF_ERROR(OpenFile());
  return true;
}

absl::Status RowStream::OpenFile() {
  ASSIGN_OR_RETURN(lines_, LineStream::Open(files_->paths[next_file_ - 1], cancelled_,
                                            files_->format, next_file_ - 1, files_->store.get()));
  RETURN_IF_ERROR(CheckFile());
  seen_ = {};
  is_passed_ = false;
  kept_.clear();
  next_kept_ = 0;
  if (!files_->header.empty()) RETURN_IF_ERROR(CheckHeader());
  if (TextIndex* const noted = index(); noted != nullptr) {
    lines_->CollectPoints(noted->point_bytes(), [noted, version = version_](RestartPoint point) {
      noted->Note(version, std::move(point));
    });
  }
  return absl::OkStatus();
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
  if (!on_scan) return {};
  const int64_t files = static_cast<int64_t>(files_->paths.size());
  return [&on_scan, before = bytes_before_, begun = int64_t{next_file_},
          files](const ScanProgress& progress) {
    const int64_t known = before + progress.total_bytes;
    on_scan({before + progress.done_bytes, known / begun * files, /*is_over=*/false});
  };
}

absl::Status RowStream::CheckFile() {
  looked_at_ = lines_->position();
  return files_->pinned == nullptr ? absl::OkStatus()
                                   : files_->pinned->Check(files_->paths[next_file_ - 1]);
}

absl::Status RowStream::NoteRead(int64_t rows) {
  seen_.rows += rows;
  if (rows == 0 || lines_->position() - looked_at_ >= kPinnedFileLookBytes) {
    RETURN_IF_ERROR(CheckFile());
  }
  TextIndex* const noted = index();
  if (noted == nullptr) return absl::OkStatus();
  const LineStream::Place place = lines_->place();
  if (rows == 0) {
    noted->NoteEnd(version_, seen_);
  } else if (noted->WantsPlace(version_, place.offset)) {
    noted->Note(version_, RowPlace{place.offset, place.line, seen_});
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RowStream::ReadRows(int64_t count, RawBatch* raw) {
  const int64_t wanted = std::min(count, kRowsAtATime);
  int64_t rows = 0;
  if (!filter_.is_held_out) {
    ASSIGN_OR_RETURN(rows, lines_->Append(wanted, raw));
  } else {
    raw->ClearText();
    kept_.clear();
    next_kept_ = 0;
    ASSIGN_OR_RETURN(rows, lines_->Append(kRowsAtATime, raw));
    for (int64_t row = 0; row < rows; ++row) {
      const bool is_held_out = filter_.is_held_out(raw->TextOf(row), next_file_ - 1);
      if (is_held_out) ++seen_.held_out;
      if (is_held_out == filter_.wants_held_out) kept_.push_back(row);
    }
  }
  RETURN_IF_ERROR(NoteRead(rows));
  return rows;
}

absl::Status RowStream::GoTowards(int64_t row) {
  if (index() == nullptr) return absl::OkStatus();
  const int64_t here = std::max<int64_t>(lines_->place().offset, 0);
  const auto way =
      index()->Find(version_, here, lines_->compressed(),
                    [this, row](const RowCount& before) { return filter_.Count(before) <= row; });
  if (!way.has_value()) return absl::OkStatus();
  const absl::Status gone = lines_->Restart({way->place.offset, way->place.line}, way->point);
  if (absl::IsCancelled(gone)) return gone;
  if (gone.ok()) {
    seen_ = way->place.before;
    return absl::OkStatus();
  }
  // The file is not the one that was indexed: read it from its first row, without the index.
  index()->Drop();
  version_ = 0;
  return OpenFile();
}

absl::StatusOr<int64_t> RowStream::SkipInFile(int64_t count, const OnScan& on_scan) {
  // Rows that the filter has looked at already come first.
  const auto judged = std::min<int64_t>(count, static_cast<int64_t>(kept_.size() - next_kept_));
  next_kept_ += judged;
  if (judged == count || is_passed_) return judged;
  const int64_t first = rows_before();
  const int64_t last = first + std::min(count - judged, INT64_MAX - first);
  const auto all = index() != nullptr ? index()->rows(version_) : std::nullopt;
  if (all.has_value() && filter_.Count(*all) <= last) {
    seen_ = *all;
    is_passed_ = true;
    return judged + rows_before() - first;
  }
  RETURN_IF_ERROR(GoTowards(last));
  while (rows_before() < last) {
    int64_t rows = 0;
    if (filter_.is_held_out) {
      ASSIGN_OR_RETURN(rows, ReadRows(kRowsAtATime, &read_));
      const int64_t beyond = std::max<int64_t>(rows_before() - last, 0);
      next_kept_ = kept_.size() - beyond;
      if (on_scan) on_scan({lines_->position(), lines_->size(), false});
    } else {
      ASSIGN_OR_RETURN(rows, lines_->Skip(std::min(last - rows_before(), kRowsAtATime), on_scan));
      RETURN_IF_ERROR(NoteRead(rows));
    }
    if (rows == 0) break;
  }
  return judged + std::max<int64_t>(std::min(rows_before(), last) - first, 0);
}

absl::StatusOr<int64_t> RowStream::Skip(int64_t count, const OnScan& on_scan) {
  int64_t skipped = 0;
  for (bool more = true; more && skipped < count;) {
    ASSIGN_OR_RETURN(const int64_t rows, SkipInFile(count - skipped, OfAll(on_scan)));
    skipped += rows;
    if (skipped == count) break;
    ASSIGN_OR_RETURN(more, NextFile());
  }
  if (on_scan) on_scan({bytes_before_ + position(), bytes_before_ + lines_->size(), true});
  return skipped;
}

absl::StatusOr<int64_t> RowStream::Append(int64_t count, RawBatch* raw) {
  int64_t added = 0;
  while (added < count) {
    if (next_kept_ < kept_.size()) {
      AppendRow(read_, kept_[next_kept_++], raw);
      ++added;
      continue;
    }
    int64_t rows = 0;
    if (!is_passed_) {
      ASSIGN_OR_RETURN(rows, ReadRows(count - added, filter_.is_held_out ? &read_ : raw));
    }
    if (!filter_.is_held_out) added += rows;
    if (rows > 0) continue;
    ASSIGN_OR_RETURN(const bool more, NextFile());
    if (!more) break;
  }
  return added;
}

double RowStream::progress() const {
  const int64_t known = bytes_before_ + lines_->size();
  if (known == 0) return 1;
  const double of_begun = static_cast<double>(bytes_before_ + position()) / known;
  return std::min(1.0, of_begun * next_file_ / files_->paths.size());
}

}  // namespace thermocline
