// Criteo's text form: label, integers, hexadecimal categories, separated by tabs.
//
//   label       0 or 1
//   integer     integer or decimal text, maybe negative; x becomes log(1 + max(x, 0)), and an
//               empty one 0
//   category    up to 16 hexadecimal digits, which are the key; several, separated by commas, are a
//               bag; empty is kEmptyCategoryKey, which no digits may spell
// A line may end in "\r\n".
#ifndef THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch.h"
#include "worker/data/line_stream.h"

namespace thermocline {

// Parses lines. Thread-safe.
class TsvParser {
 public:
  TsvParser(int num_dense, std::vector<std::string> feature_names);

  // Fills size, dense, labels and features of `batch` from the lines
  // text[line_begin[i] .. line_begin[i + 1]), each ended by '\n', for i in [begin, end). Lines that
  // are malformed are left out, and their i added to `bad`.
  void ParseLines(const char* text, const uint64_t* line_begin, int64_t begin, int64_t end,
                  Batch* batch, std::vector<int64_t>* bad) const;

  // What is wrong with a malformed line, the first column that is:
  //   "column 17 ('C3'): 'xyz' is not a hexadecimal number"
  //   "39 columns, not 40 (1 label + data.num_dense=13 + data.num_categorical=26)"
  // Of a comma-separated file, or a header, it says so and what to do.
  std::string Describe(absl::string_view line) const;

  int num_columns() const { return 1 + num_dense_ + static_cast<int>(feature_names_.size()); }

 private:
  struct Keys;  // Of one feature while a batch is parsed.

  bool ParseLine(const char* line, float* dense, float* label, std::vector<Keys>* features) const;
  std::string ColumnName(int column) const;

  const int num_dense_;
  const std::vector<std::string> feature_names_;
  std::vector<float> log1p_;  // Of small integers.
};

// Rows [begin, end) of a file, as a BatchSource.
class TsvSource : public BatchSource {
 public:
  // end < 0: through the end of the file. Otherwise the file was counted and has at least `end`
  // rows; if Read finds fewer, that is kDataLoss. `on_scan` runs while rows are skipped.
  TsvSource(std::string path, int64_t begin, int64_t end, int num_dense,
            std::vector<std::string> feature_names, OnScan on_scan);

  absl::Status Rewind() override;
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  absl::Status TooFewRows(int64_t found) const;

  const std::string path_;
  const int64_t begin_;
  const int64_t end_;
  const TsvParser parser_;
  const OnScan on_scan_;
  std::atomic<bool> cancelled_{false};

  // Of the thread that reads.
  std::unique_ptr<LineStream> lines_;
  int64_t next_row_ = 0;  // of the file
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_
