#include "worker/data/text/line_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr size_t kBlockBytes = 256 << 10;

void Report(const OnScan& on_scan, const ByteSource& source, bool is_over) {
  if (on_scan) on_scan({source.position(), source.size(), is_over});
}

// A format that no parser of text reads: its files have `magic` at byte `offset`.
struct BinaryFormat {
  size_t offset;
  absl::string_view magic;
  absl::string_view advice;
};

constexpr BinaryFormat kBinaryFormats[] = {
    {0, "\x93NUMPY",
     "is a NumPy array (.npy); data.format: DLRM_NPY reads those, and data.path is then their "
     "folder"},
    {0, "PK\3\4",
     "is a zip archive or NumPy's .npz; unzip it: text is read plain or compressed with gzip or "
     "zstd, and DLRM_NPY reads a folder of .npy files"},
    {0, "PAR1", "is a Parquet file; data.train { parquet {} } and `feature` read those"},
    {0, "\x1f\x8b", "is gzip within gzip; inflate it once: gunzip"},
    {0, "\x28\xb5\x2f\xfd", "is zstd within a compressed file; decompress it once"},
    {0,
     "\xfd"
     "7zXZ",
     "is compressed with xz; text is read plain or compressed with gzip or zstd: unxz"},
    {0, "BZh",
     "is compressed with bzip2; text is read plain or compressed with gzip or zstd: bunzip2"},
    {257, "ustar", "is a tar archive; unpack it (tar -xf) and name the log in it"},
};

// Checks a file's first bytes, decompressed. Errors: kInvalidArgument (they are those of a binary
// format).
absl::Status CheckIsText(const std::string& path, absl::string_view head) {
  for (const BinaryFormat& format : kBinaryFormats) {
    if (head.size() < format.offset) continue;
    if (absl::StartsWith(head.substr(format.offset), format.magic)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the file ", format.advice));
    }
  }
  return absl::OkStatus();
}

}  // namespace

LineStream::LineStream(std::string path, std::unique_ptr<ByteSource> source,
                       const std::atomic<bool>* cancelled, const LineFormat& format, int file)
    : path_(std::move(path)),
      source_(std::move(source)),
      cancelled_(cancelled),
      format_(format),
      file_(file),
      block_(kBlockBytes) {}

absl::StatusOr<std::unique_ptr<LineStream>> LineStream::Open(const std::string& path,
                                                             const std::atomic<bool>* cancelled,
                                                             const LineFormat& format, int file,
                                                             ObjectStore* store) {
  ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, ByteSource::Open(path, store));
  return std::unique_ptr<LineStream>(
      new LineStream(path, std::move(source), cancelled, format, file));
}

absl::StatusOr<bool> LineStream::Refill() {
  if (cancelled_->load(std::memory_order_relaxed)) {
    return absl::CancelledError("reading was cancelled");
  }
  std::memmove(block_.data(), block_.data() + position_, end_ - position_);
  block_offset_ += static_cast<int64_t>(position_);
  end_ -= position_;
  position_ = 0;
  ASSIGN_OR_RETURN(const size_t n, source_->Read(absl::MakeSpan(block_).subspan(end_)));
  end_ += n;
  if (!std::exchange(is_checked_, true)) {
    const absl::string_view head(block_.data(), end_);
    RETURN_IF_ERROR(CheckIsText(path_, head));
    if (absl::StartsWith(head, kByteOrderMark)) position_ = kByteOrderMark.size();
  }
  if (on_scan_ != nullptr) Report(*on_scan_, *source_, /*is_over=*/false);
  return n > 0;
}

absl::Status LineStream::Restart(const Place& place, const RestartPoint& point) {
  RETURN_IF_ERROR(source_->Restart(point));
  position_ = end_ = 0;
  block_offset_ = point.offset;
  blanks_ = 0;
  is_checked_ = true;
  const auto no_line = [&] {
    return absl::DataLossError(absl::StrCat(path_, ": no line begins at byte ", place.offset));
  };
  // Read up to the line end before the place.
  while (block_offset_ + static_cast<int64_t>(position_) < place.offset) {
    ASSIGN_OR_RETURN(const bool more, Refill());
    if (!more) return no_line();
    position_ =
        static_cast<size_t>(std::min(static_cast<int64_t>(end_), place.offset - block_offset_));
  }
  if (position_ == 0 || block_[position_ - 1] != '\n') return no_line();
  line_ = place.line;
  return absl::OkStatus();
}

absl::StatusOr<bool> LineStream::FindContent() {
  for (;;) {
    while (position_ < end_ && block_[position_] == '\n') {
      ++position_;
      ++blanks_;
    }
    if (position_ < end_ && block_[position_] != '\r') return true;
    // At the end of the block, or at a '\r' that may be a blank line's.
    if (end_ - position_ < 2) {
      ASSIGN_OR_RETURN(const bool more, Refill());
      if (!more) return false;  // Nothing is left, or a lone '\r', which is blank too.
    } else if (block_[position_ + 1] == '\n') {
      ++position_;
    } else {
      return true;
    }
  }
}

LineStream::InColumn LineStream::After(InColumn place, absl::string_view bytes, bool* opens) const {
  if (place != InColumn::kQuoted && place != InColumn::kQuoteInQuotes &&
      std::memchr(bytes.data(), '"', bytes.size()) == nullptr) {
    return bytes.back() == format_.separator ? InColumn::kBegin : InColumn::kPlain;
  }
  for (const char c : bytes) {
    if (place == InColumn::kQuoted) {
      if (c == '"') place = InColumn::kQuoteInQuotes;
    } else if (c == '"' && place != InColumn::kPlain) {
      *opens |= place == InColumn::kBegin;  // If not, it is a quote that was written twice.
      place = InColumn::kQuoted;
    } else {
      place = c == format_.separator ? InColumn::kBegin : InColumn::kPlain;
    }
  }
  return place;
}

absl::Status LineStream::TakeLine(UninitializedVector<char>* text, size_t* used) {
  const int64_t first_line = line_++;
  size_t length = 0;
  InColumn place = InColumn::kBegin;
  int64_t opened = first_line;  // The line in which the last quote opens.
  bool has_more_lines = false;  // Whether there is text in lines after the first.
  for (bool last = false; !last;) {
    const char* const begin = block_.data() + position_;
    const void* const newline = std::memchr(begin, '\n', end_ - position_);
    const size_t n =
        newline != nullptr ? static_cast<const char*>(newline) + 1 - begin : end_ - position_;
    length += n;
    has_more_lines |= n > 0 && line_ - 1 > first_line;
    if (length > kMaxLineBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ":", first_line, ": the line is longer than ", kMaxLineBytes, " bytes",
          place == InColumn::kQuoted
              ? absl::StrCat("; the quote that opens in line ", opened, " is not closed")
              : ""));
    }
    if (format_.quotes && n > 0) {
      bool opens = false;
      place = After(place, absl::string_view(begin, n), &opens);
      if (opens) opened = line_ - 1;
    }
    last = newline != nullptr && place != InColumn::kQuoted;
    if (newline != nullptr && !last) ++line_;
    if (text != nullptr) {
      ReserveText(*used, n + 1, text);
      std::memcpy(text->data() + *used, begin, n);
      *used += n;
    }
    position_ += n;
    if (!last && position_ == end_) {
      ASSIGN_OR_RETURN(const bool more, Refill());
      if (!more && place == InColumn::kQuoted && has_more_lines) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ":", opened,
                         ": a quote opens here, and is not closed before the end of the file; "
                         "quotes: false reads quotes as they are"));
      }
      if (!more) {  // The file's last line has no newline: it gets one.
        if (text != nullptr) (*text)[(*used)++] = '\n';
        last = true;
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> LineStream::Skip(int64_t count, const OnScan& on_scan) {
  on_scan_ = &on_scan;
  const absl::StatusOr<int64_t> skipped = SkipLines(count);
  on_scan_ = nullptr;
  Report(on_scan, *source_, /*is_over=*/true);
  return skipped;
}

absl::StatusOr<int64_t> LineStream::SkipLines(int64_t count) {
  int64_t skipped = 0;
  while (skipped < count) {
    ASSIGN_OR_RETURN(const bool more, FindContent());
    if (!more) break;
    if (blanks_ > 0) {
      --blanks_;
      ++line_;
    } else {
      RETURN_IF_ERROR(TakeLine(nullptr, nullptr));
    }
    ++skipped;
  }
  return skipped;
}

absl::StatusOr<int64_t> LineStream::Append(int64_t count, RawBatch* raw) {
  int64_t added = 0;
  raw->line_begin.reserve(raw->num_rows + count + 1);
  size_t used = raw->line_begin.back();
  for (; added < count; ++added) {
    ASSIGN_OR_RETURN(const bool more, FindContent());
    if (!more) break;
    raw->AddOrigin(file_, line_);
    if (blanks_ > 0) {
      --blanks_;
      ++line_;
      ReserveText(used, 1, &raw->text);
      raw->text[used++] = '\n';
    } else {
      RETURN_IF_ERROR(TakeLine(&raw->text, &used));
    }
    raw->line_begin.push_back(used);
    ++raw->num_rows;
  }
  return added;
}

}  // namespace thermocline
