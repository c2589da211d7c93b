// The rows of several text files as those of one: file after file, without their headers.
#ifndef THERMOCLINE_WORKER_DATA_ROW_STREAM_H_
#define THERMOCLINE_WORKER_DATA_ROW_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/batch.h"
#include "worker/data/line_stream.h"
#include "worker/data/text_parser.h"

namespace thermocline {

struct TextFiles {
  std::vector<std::string> paths;  // At least one.
  LineFormat format;
  // The first line of each file is this header; {}: there is none.
  std::vector<std::string> header;
};

// The names of the columns that the first line of `path` has. Errors: as LineStream;
// kInvalidArgument (no line, a column without a name, or a name twice).
absl::StatusOr<std::vector<std::string>> ReadHeader(const std::string& path,
                                                    const LineFormat& format);

// All rows. Errors: as RowStream.
absl::StatusOr<int64_t> CountRows(const TextFiles& files, const OnScan& on_scan);

// Not thread-safe.
class RowStream {
 public:
  // Whether a row belongs to the stream. Empty: all do.
  using Filter = std::function<bool(absl::string_view line)>;

  // Once `*cancelled`, which outlives the stream, is set, calls return kCancelled.
  RowStream(std::shared_ptr<const TextFiles> files, Filter filter,
            const std::atomic<bool>* cancelled)
      : files_(std::move(files)), filter_(std::move(filter)), cancelled_(cancelled) {}

  // Back to the first row. Errors: those of the first file.
  absl::Status Rewind();

  // Skips `count` rows, or those that are left; returns how many. Errors: as LineStream;
  // kInvalidArgument (a file's header is another than the first one's: says where).
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {});

  // Adds up to `count` rows to `raw`, fewer at the end only; returns how many. Errors: as Skip.
  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw);

  // Share of the files' bytes that is consumed; each file that is not begun counts as much as the
  // average of the others.
  double progress() const;

 private:
  // Opens the next file; false: there is none.
  absl::StatusOr<bool> NextFile();
  absl::Status CheckHeader();
  absl::StatusOr<int64_t> SkipFiltered(int64_t count, const OnScan& on_scan);
  // Reports of one file as those of all.
  OnScan OfAll(const OnScan& on_scan) const;

  const std::shared_ptr<const TextFiles> files_;
  const Filter filter_;
  const std::atomic<bool>* const cancelled_;
  std::unique_ptr<LineStream> lines_;  // Of file next_file_ - 1.
  int next_file_ = 0;
  int64_t bytes_before_ = 0;  // Of the files before lines_.
  RawBatch read_;             // Rows that the filter has not judged yet, from read_row_ on.
  int64_t read_row_ = 0;
};

// Adds row `row` of `from` to `to`.
void AppendRow(const RawBatch& from, int64_t row, RawBatch* to);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_ROW_STREAM_H_
