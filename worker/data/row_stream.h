// Reads the rows of several text files as if they were one: file after file, without their headers.
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
  // [paths] Where rows begin; {}: without indexes all that comes before a row has to be read.
  std::vector<std::shared_ptr<TextIndex>> indexes;
  LineFormat format;
  // The first line of each file is this header; {}: there is none.
  std::vector<std::string> header;
  std::shared_ptr<ObjectStore> store;   // Null: no path is an object.
  std::shared_ptr<PinnedFiles> pinned;  // Null: files are not checked for changes.
  // [paths] The values of the keys of each file's folders, which are columns behind its own; {}:
  // the folders have no keys.
  std::vector<std::vector<std::string>> keys;
};

// Returns the names of the columns, from the first line of `path`. The first name may be empty,
// since data frames write their index there. Errors: LineStream's; kInvalidArgument (no line,
// another column without a name, or a name twice).
absl::StatusOr<std::vector<std::string>> ReadHeader(const std::string& path,
                                                    const LineFormat& format,
                                                    ObjectStore* store = nullptr);

// Counts the rows of all files. Errors: RowStream's.
absl::StatusOr<int64_t> CountRows(std::shared_ptr<const TextFiles> files, const OnScan& on_scan);

// Which rows of the files a stream has: either those that are held out, or the others.
struct RowFilter {
  // Whether a line of file number `file` is held out. Empty: the stream has all rows.
  std::function<bool(absl::string_view line, int file)> is_held_out;
  bool wants_held_out = false;

  // Returns how many of `rows` the stream has.
  int64_t Count(const RowCount& rows) const {
    if (!is_held_out) return rows.rows;
    return wants_held_out ? rows.held_out : rows.rows - rows.held_out;
  }
};

// Reads the rows of a split from all its files, as if they were one file. Not thread-safe.
// Implementations: RowStream, for text; ParquetRows (parquet_source.cc).
class RowReader {
 public:
  virtual ~RowReader() = default;

  // Goes back to the first row. Errors: those of opening the first file.
  virtual absl::Status Rewind() = 0;

  // Skips `count` rows, fewer at the end only. Returns how many. If it has to read them, it calls
  // `on_scan` meanwhile.
  virtual absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan) = 0;

  // Adds up to `count` rows to `raw`, fewer at the end only. Returns how many. Errors: Skip's.
  virtual absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw) = 0;

  // The share of the data that is consumed, in [0, 1].
  virtual double progress() const = 0;
};

// Reads rows of text.
class RowStream : public RowReader {
 public:
  // `*cancelled` must outlive the stream. Once it is set, calls return kCancelled.
  RowStream(std::shared_ptr<const TextFiles> files, RowFilter filter,
            const std::atomic<bool>* cancelled)
      : files_(std::move(files)), filter_(std::move(filter)), cancelled_(cancelled) {}

  // Errors of these calls: LineStream's; kInvalidArgument (a file's header is not that of the first
  // file: says where it differs); kFailedPrecondition (a file has changed: PinnedFiles).
  absl::Status Rewind() override;
  // With indexes it goes to the last place known before the wanted row, and reads from there.
  absl::StatusOr<int64_t> Skip(int64_t count, const OnScan& on_scan = {}) override;
  absl::StatusOr<int64_t> Append(int64_t count, RawBatch* raw) override;
  // The share of the files' bytes. The size of a file that is not opened yet is taken to be the
  // average of the others.
  double progress() const override;

 private:
  // Opens the next file. Returns false if there is none.
  absl::StatusOr<bool> NextFile();
  absl::Status OpenFile();
  absl::Status CheckHeader();
  // Reads rows of the file into `raw`, up to `count` if there is no filter. With a filter, sets
  // kept_ to those that are the stream's. Returns how many were read.
  absl::StatusOr<int64_t> ReadRows(int64_t count, RawBatch* raw);
  // Skips up to `count` of the stream's rows in this file; returns how many.
  absl::StatusOr<int64_t> SkipInFile(int64_t count, const OnScan& on_scan);
  // Goes on at the last place known that is before the stream's row `row` of this file.
  absl::Status GoTowards(int64_t row);
  // Checks that the file is still what it was. Errors: PinnedFiles::Check's.
  absl::Status CheckFile();
  // Counts `rows` rows that lines_ gave (0: the file has no more), and notes the place after them
  // in the index. Checks the file at its end, and after every kPinnedFileLookBytes.
  absl::Status NoteRead(int64_t rows);
  TextIndex* index() const;
  int64_t position() const { return is_passed_ ? lines_->size() : lines_->position(); }
  // How many of the stream's rows this file has before the place of lines_.
  int64_t rows_before() const { return filter_.Count(seen_); }
  // Turns reports about this file into reports about all files.
  OnScan OfAll(const OnScan& on_scan) const;

  const std::shared_ptr<const TextFiles> files_;
  const RowFilter filter_;
  const std::atomic<bool>* const cancelled_;
  std::unique_ptr<LineStream> lines_;  // The lines of file next_file_ - 1.
  uint64_t version_ = 0;               // The file's version in its index; 0: it has no index.
  int64_t looked_at_ = 0;              // The position of lines_ at the last CheckFile().
  bool is_passed_ = false;             // All of the file was skipped; lines_ may stand before that.
  RowCount seen_;                      // Rows of the file before the place of lines_.
  int next_file_ = 0;
  int64_t bytes_before_ = 0;   // The bytes of all files before this one.
  RawBatch read_;              // Rows that the filter has looked at.
  std::vector<int64_t> kept_;  // The rows of read_ that are the stream's.
  size_t next_kept_ = 0;       // The first of kept_ that is not handed out.
};

// Adds row `row` of `from` to `to`. The caller has to share the blocks of columns that it refers
// to.
void AppendRow(const RawBatch& from, int64_t row, RawBatch* to);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_ROW_STREAM_H_
