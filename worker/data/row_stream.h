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
#include "worker/data/pinned_files.h"
#include "worker/data/text/line_stream.h"
#include "worker/data/text/text_index.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {

struct TextFiles {
  std::vector<std::string> paths;  // At least one.
  // Of each file; {}: rows are found by reading all that is before them.
  std::vector<std::shared_ptr<TextIndex>> indexes;
  LineFormat format;
  // The first line of each file is this header; {}: there is none.
  std::vector<std::string> header;
  std::shared_ptr<ObjectStore> store;   // Of paths that are objects; null: there are none.
  std::shared_ptr<PinnedFiles> pinned;  // Null: what is read may change.
  // The values of the keys of each file's folders, which are columns behind its own; {}: none are.
  std::vector<std::vector<std::string>> keys;
};

// The names of the columns that the first line of `path` has; that of the first, where data frames
// write their index, may be empty. Errors: as LineStream; kInvalidArgument (no line, another column
// without a name, or a name twice).
absl::StatusOr<std::vector<std::string>> ReadHeader(const std::string& path,
                                                    const LineFormat& format,
                                                    ObjectStore* store = nullptr);

// All rows. Errors: as RowStream.
absl::StatusOr<int64_t> CountRows(std::shared_ptr<const TextFiles> files, const OnScan& on_scan);

// Which rows of the files a stream has.
struct RowFilter {
  // Empty: no row is held out, and the stream has them all. `file`: its number.
  std::function<bool(absl::string_view line, int file)> is_held_out;
  bool wants_held_out = false;

  // How many of `rows` the stream has.
  int64_t Count(const RowCount& rows) const {
    if (!is_held_out) return rows.rows;
    return wants_held_out ? rows.held_out : rows.rows - rows.held_out;
  }
};

// The rows of a split's files, those of all files as if they were one. Not thread-safe.
class RowReader {
 public:
  virtual ~RowReader() = default;

  // Back to the first row. Errors: those of the first file.
  virtual absl::Status Rewind() = 0;

  // Skips `count` rows, or those that are left; returns how many. `on_scan` is called meanwhile
  // where that takes reading.
  virtual absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan) = 0;

  // Adds up to `count` rows to `raw`, fewer at the end only; returns how many. Errors: as Skip.
  virtual absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw) = 0;

  // Share of what there is to read that is consumed.
  virtual double progress() const = 0;
};

// Of text.
class RowStream : public RowReader {
 public:
  // Once `*cancelled`, which outlives the stream, is set, calls return kCancelled.
  RowStream(std::shared_ptr<const TextFiles> files, RowFilter filter,
            const std::atomic<bool>* cancelled)
      : files_(std::move(files)), filter_(std::move(filter)), cancelled_(cancelled) {}

  // Errors of all: as LineStream; kInvalidArgument (a file's header is another than the first
  // one's: says where); kFailedPrecondition (a file has changed: PinnedFiles).
  absl::Status Rewind() override;
  // Reads no more of the files than their indexes leave to be read.
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {}) override;
  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw) override;
  // Of the files' bytes; each file that is not begun counts as much as the average of the others.
  double progress() const override;

 private:
  // Opens the next file; false: there is none.
  absl::StatusOr<bool> NextFile();
  absl::Status OpenFile();
  absl::Status CheckHeader();
  // Reads up to `count` rows of the file: into `raw` those that the filter keeps, or, without one,
  // all. Returns how many were read.
  absl::StatusOr<int64_t> ReadRows(int64_t count, RawBatch* raw);
  // Skips up to `count` of the stream's rows in this file; returns how many.
  absl::StatusOr<int64_t> SkipInFile(int64_t count, const OnScan& on_scan);
  // Goes on at the last place known that is before the stream's row `row` of this file.
  absl::Status GoTowards(int64_t row);
  // Whether the file is still what it was.
  absl::Status CheckFile();
  // Counts rows that lines_ gave, the place after them included; 0: the file has no more. Looks at
  // the file there, and where much was read since the last look.
  absl::Status NoteRead(int64_t rows);
  TextIndex* index() const;
  int64_t position() const { return is_passed_ ? lines_->size() : lines_->position(); }
  // Those of this file, up to where lines_ is.
  int64_t rows_before() const { return filter_.Count(seen_); }
  // Reports of one file as those of all.
  OnScan OfAll(const OnScan& on_scan) const;

  const std::shared_ptr<const TextFiles> files_;
  const RowFilter filter_;
  const std::atomic<bool>* const cancelled_;
  std::unique_ptr<LineStream> lines_;  // Of file next_file_ - 1.
  uint64_t version_ = 0;               // Of the file, for its index; 0: it has none.
  int64_t looked_at_ = 0;              // The position of lines_ at the last CheckFile().
  bool is_passed_ = false;             // All of the file was skipped; lines_ may stand before that.
  RowCount seen_;                      // Rows of the file before the place of lines_.
  int next_file_ = 0;
  int64_t bytes_before_ = 0;   // Of the files before lines_.
  RawBatch read_;              // Rows that the filter has judged,
  std::vector<int64_t> kept_;  // those of them that are the stream's,
  size_t next_kept_ = 0;       // and the first of these that is not handed out.
};

// Adds row `row` of `from` to `to`; blocks of columns that it refers to are the caller's to share.
void AppendRow(const RawBatch& from, int64_t row, RawBatch* to);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_ROW_STREAM_H_
