// The lines of a text file, in bulk. Blank lines at the end of the file are no lines; a blank line
// before others is one.
#ifndef THERMOCLINE_WORKER_DATA_LINE_STREAM_H_
#define THERMOCLINE_WORKER_DATA_LINE_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch_source.h"
#include "worker/data/byte_source.h"

namespace thermocline {

// Longest line; bounds the memory that a file without newlines takes.
inline constexpr size_t kMaxLineBytes = 16 << 20;

// How far a pass over a file is that hands out no row. It may take long, and nothing else shows it.
struct ScanProgress {
  int64_t done_bytes = 0;   // of the file as it lies on the disk
  int64_t total_bytes = 0;  // 0: not known (a pipe)
  bool is_over = false;
};
// Called on the thread that reads: with every block, and once when the scan is over.
using OnScan = std::function<void(const ScanProgress&)>;

// Counts the lines of a file in one pass over its bytes. Errors: as ByteSource; kInvalidArgument
// (its first bytes are those of a binary format: says which, and what reads it).
absl::StatusOr<int64_t> CountLines(const std::string& path, const OnScan& on_scan = {});

// Not thread-safe.
class LineStream {
 public:
  // `cancelled` outlives the stream; once it is set, calls return kCancelled.
  static absl::StatusOr<std::unique_ptr<LineStream>> Open(const std::string& path,
                                                          const std::atomic<bool>* cancelled);

  // Skips `count` lines, or those that are left; returns how many.
  // Errors: as CountLines; kInvalidArgument (a line is too long: file and line).
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {});

  // Reads up to `count` lines into num_rows, text, line_begin and first_line of `raw`, each ended
  // by
  // '\n', also the last of a file that isn't. Errors: as Skip.
  absl::Status Read(int64_t count, RawBatch* raw);

  // Share of the file's bytes that is consumed.
  double progress() const;

 private:
  LineStream(std::string path, std::unique_ptr<ByteSource> source,
             const std::atomic<bool>* cancelled);

  // Steps over blank lines to the next other line; false at the end of the file.
  absl::StatusOr<bool> FindContent();
  // Reads the next block behind what is left of this one; false at the end of the file.
  absl::StatusOr<bool> Refill();
  // Skip, without the last report of `on_scan_`.
  absl::StatusOr<int64_t> SkipLines(int64_t count);
  // Ends at the newline of the line at position_, maybe blocks away. Copies it behind
  // text[*used] unless `text` is null.
  absl::Status TakeLine(UninitializedVector<char>* text, size_t* used);

  const std::string path_;
  const std::unique_ptr<ByteSource> source_;
  const std::atomic<bool>* const cancelled_;
  UninitializedVector<char> block_;
  size_t position_ = 0;              // in block_
  size_t end_ = 0;                   // of the bytes in block_
  bool is_checked_ = false;          // The file's first bytes are those of text.
  int64_t line_ = 1;                 // Number of the line to be handed out next.
  int64_t blanks_ = 0;               // Blank lines stepped over and not handed out.
  const OnScan* on_scan_ = nullptr;  // While lines are skipped.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_LINE_STREAM_H_
