// A data file as lines.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_LINE_STREAM_H_
#define THERMOCLINE_WORKER_DATA_TEXT_LINE_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch.h"
#include "worker/data/byte_source.h"

namespace thermocline {

// Longest line; bounds the memory that a file without newlines takes.
inline constexpr size_t kMaxLineBytes = 16 << 20;

inline constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";  // Of UTF-8; no text.

// The progress of a scan, which may take long and hands out no row.
struct ScanProgress {
  int64_t done_bytes = 0;   // of the file as it lies on the disk
  int64_t total_bytes = 0;  // 0: not known (a pipe)
  bool is_over = false;
};
// Called on the thread that reads: with every block, and once when the scan is over.
using OnScan = std::function<void(const ScanProgress&)>;

// What divides text into lines: a line end within a column that `quotes` enclose is none.
struct LineFormat {
  char separator = '\t';  // between columns
  bool quotes = false;    // A column may stand in double quotes.
};

// The lines of a text file, in bulk; where columns may be quoted, a line is a row of the file with
// all its line ends. Blank lines at the end of the file do not count; a blank line
// before others does. Not thread-safe.
class LineStream {
 public:
  // `cancelled` outlives the stream; once it is set, calls return kCancelled. `file` is the number
  // of the file in the origins of rows; `store` as of ByteSource.
  static absl::StatusOr<std::unique_ptr<LineStream>> Open(const std::string& path,
                                                          const std::atomic<bool>* cancelled,
                                                          const LineFormat& format = {},
                                                          int file = 0,
                                                          ObjectStore* store = nullptr);

  // Skips `count` lines, or those that are left; returns how many.
  // Errors: as ByteSource; kInvalidArgument (a line is too long: file and line; a quote that is not
  // closed takes the rest of the file's lines: file, and the line where it opens; the file's first
  // bytes are those of a binary format: says which, and what reads it).
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {});

  // Adds up to `count` lines to the rows of text in `raw`. Each ends with '\n', even the last of a
  // file that has none there. Returns how many. Errors: as Skip.
  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw);

  // Where the line begins that is handed out next; offset < 0: in the middle of blank lines, which
  // may be the file's last.
  struct Place {
    int64_t offset = -1;  // in the text
    int64_t line = 0;     // of the file, from 1
  };
  Place place() const {
    return {blanks_ > 0 ? -1 : block_offset_ + static_cast<int64_t>(position_), line_};
  }
  // Goes on at a place that was one before, reading from `point` on, which lies before it.
  // Errors: as ByteSource::Restart; kDataLoss (no line begins there). What is read after an error
  // is not determined.
  absl::Status Restart(const Place& place, const RestartPoint& point);
  // As of ByteSource.
  void CollectPoints(int64_t every_bytes, std::function<void(RestartPoint)> on_point) {
    source_->CollectPoints(every_bytes, std::move(on_point));
  }
  bool compressed() const { return source_->compressed(); }

  // Bytes of the file that are consumed, and all of them (0: not known).
  int64_t position() const { return source_->position(); }
  int64_t size() const { return source_->size(); }

 private:
  LineStream(std::string path, std::unique_ptr<ByteSource> source,
             const std::atomic<bool>* cancelled, const LineFormat& format, int file);

  // Steps over blank lines to the next other line; false at the end of the file.
  absl::StatusOr<bool> FindContent();
  // Reads the next block after the rest of this one; false at the end of the file.
  absl::StatusOr<bool> Refill();
  // Skip, without the last report of `on_scan_`.
  absl::StatusOr<int64_t> SkipLines(int64_t count);
  // Ends at the newline of the line at position_, maybe blocks away. Appends it at
  // text[*used] unless `text` is null.
  absl::Status TakeLine(UninitializedVector<char>* text, size_t* used);
  // Where the end of a line's bytes so far stands within a column.
  enum class InColumn { kBegin, kPlain, kQuoted, kQuoteInQuotes };
  // The same after `bytes` more.
  // Sets `*opens` where a quote opens a column in them.
  InColumn After(InColumn place, absl::string_view bytes, bool* opens) const;

  const std::string path_;
  const std::unique_ptr<ByteSource> source_;
  const std::atomic<bool>* const cancelled_;
  const LineFormat format_;
  const int file_;
  UninitializedVector<char> block_;
  int64_t block_offset_ = 0;         // of block_ in the text
  size_t position_ = 0;              // in block_
  size_t end_ = 0;                   // of the bytes in block_
  bool is_checked_ = false;          // The file's first bytes are those of text.
  int64_t line_ = 1;                 // Number of the line to be handed out next.
  int64_t blanks_ = 0;               // Blank lines stepped over and not handed out.
  const OnScan* on_scan_ = nullptr;  // While lines are skipped.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_LINE_STREAM_H_
