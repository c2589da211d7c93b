// Reads a data file line by line.
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
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch.h"
#include "worker/data/byte_source.h"

namespace thermocline {

// The longest line. It bounds the memory that a file without newlines takes.
inline constexpr size_t kMaxLineBytes = 16 << 20;

// UTF-8's byte order mark; it is no part of the text.
inline constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// The progress of a scan, which may take long and hands out no row.
struct ScanProgress {
  int64_t done_bytes = 0;   // Bytes of the file as it is on the disk.
  int64_t total_bytes = 0;  // 0: not known (a pipe)
  bool is_over = false;
};
// Called on the thread that reads: with every block, and once when the scan is over.
using OnScan = std::function<void(const ScanProgress&)>;

// How text is divided into lines and columns. A line end within quotes ends no line.
struct LineFormat {
  char separator = '\t';  // Between columns.
  bool quotes = false;    // Whether columns may stand in double quotes.
};

// Reads the lines of a text file, many at a time. If columns may be quoted, a "line" is a row of
// the file with all its line ends. Blank lines at the end of the file do not count; a blank line
// before others does. Not thread-safe.
class LineStream {
 public:
  // Opens a file.
  //   cancelled: must outlive the stream; once it is set, calls return kCancelled
  //   file: the file's number in RawBatch::origins
  //   store: as for ByteSource::Open
  // Errors: ByteSource::Open's.
  static absl::StatusOr<std::unique_ptr<LineStream>> Open(const std::string& path,
                                                          const std::atomic<bool>* cancelled,
                                                          const LineFormat& format = {},
                                                          int file = 0,
                                                          ObjectStore* store = nullptr);

  // Skips `count` lines, fewer at the end of the file only. Returns how many.
  // Errors: ByteSource's; kInvalidArgument (a line is too long: names file and line; a quote that
  // is not closed takes the rest of the file: names the file and the line where it opens; the
  // file's first bytes are those of a binary format: says which one, and what reads it).
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {});

  // Adds up to `count` lines to the rows of text in `raw`. Each ends with '\n', even the last line
  // of a file that has none there. Returns how many. Errors: Skip's.
  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw);

  // Where the next line begins. offset < 0: the stream is in the middle of blank lines, which may
  // be the file's last.
  struct Place {
    int64_t offset = -1;  // In the text.
    int64_t line = 0;     // In the file, from 1.
  };
  Place place() const {
    return {blanks_ > 0 ? -1 : block_offset_ + static_cast<int64_t>(position_), line_};
  }
  // Goes on at `place`, where a line of this file began once. Reads the file from `point` on, which
  // comes before the place. Errors: ByteSource::Restart's; kDataLoss (no line begins there). After
  // an error calls may return anything.
  absl::Status Restart(const Place& place, const RestartPoint& point);
  // See ByteSource::CollectPoints.
  void CollectPoints(int64_t every_bytes, std::function<void(RestartPoint)> on_point) {
    source_->CollectPoints(every_bytes, std::move(on_point));
  }
  bool compressed() const { return source_->compressed(); }

  // How many bytes of the file are consumed, and its size (0: not known).
  int64_t position() const { return source_->position(); }
  int64_t size() const { return source_->size(); }

 private:
  LineStream(std::string path, std::unique_ptr<ByteSource> source,
             const std::atomic<bool>* cancelled, const LineFormat& format, int file);

  // Steps over blank lines to the next other line. Returns false at the end of the file.
  absl::StatusOr<bool> FindContent();
  // Reads the next block after the rest of this one. Returns false at the end of the file.
  absl::StatusOr<bool> Refill();
  // Skips lines, without the last report to `on_scan_`.
  absl::StatusOr<int64_t> SkipLines(int64_t count);
  // Steps over the line at position_, which may end blocks away. Appends it at text[*used] unless
  // `text` is null.
  absl::Status TakeLine(UninitializedVector<char>* text, size_t* used);
  // Where within a column a line's bytes so far end.
  enum class InColumn { kBegin, kPlain, kQuoted, kQuoteInQuotes };
  // Returns where `bytes`, which begin at `place`, end. Sets *opens to true if a quote opens a
  // column in them.
  InColumn After(InColumn place, absl::string_view bytes, bool* opens) const;

  const std::string path_;
  const std::unique_ptr<ByteSource> source_;
  const std::atomic<bool>* const cancelled_;
  const LineFormat format_;
  const int file_;
  UninitializedVector<char> block_;
  int64_t block_offset_ = 0;         // Where block_ begins in the text.
  size_t position_ = 0;              // Where the next line begins in block_.
  size_t end_ = 0;                   // Where the bytes end in block_.
  bool is_checked_ = false;          // The file's first bytes are known to be text.
  int64_t line_ = 1;                 // The number of the next line.
  int64_t blanks_ = 0;               // Blank lines stepped over and not handed out.
  const OnScan* on_scan_ = nullptr;  // While lines are skipped.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_LINE_STREAM_H_
