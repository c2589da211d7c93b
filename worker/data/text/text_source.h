// A BatchSource of a range of the rows of files, shuffled in blocks if the job says so.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_TEXT_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_TEXT_TEXT_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/batch.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {

struct TextRange {
  // Rows [begin, end), counted among those of `rows`. end < 0: all from `begin` on.
  int64_t begin = 0;
  int64_t end = -1;

  // Whether the range is of all rows, or of those that data.split.column holds out or leaves.
  enum class Rows { kAll, kTrain, kHeldOut };
  Rows rows = Rows::kAll;

  // So many neighbouring rows change places with each other, block by block; 0: none do.
  int64_t shuffle_rows = 0;
  uint64_t shuffle_seed = 0;
};

// Returns the order of a block's `rows` rows: a permutation that (seed, pass, block) decide.
std::vector<int32_t> ShuffledOrder(uint64_t seed, uint32_t pass, int64_t block, int64_t rows);

// The base of sources of rows (TextSource, ParquetSource): the range, and the order within it.
class RowFileSource : public BatchSource {
 public:
  absl::Status Rewind(uint32_t pass) override;
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 protected:
  // `on_scan` is called while rows before the first are skipped.
  RowFileSource(std::vector<std::string> paths, const TextRange& range, OnScan on_scan);

  // REQUIRES: called once, before all else
  void SetRows(std::unique_ptr<RowReader> rows) { rows_ = std::move(rows); }

  const std::vector<std::string>& paths() const { return paths_; }
  const std::atomic<bool>* cancelled() const { return &cancelled_; }

 private:
  // Returns the error of files that have fewer rows than were counted.
  absl::Status TooFewRows(int64_t found) const;
  // Returns `rows`, or how many rows are left of the range if that is less.
  int64_t Wanted(int64_t rows) const;
  // Takes the next block of rows from the stream. Returns false if there is none.
  absl::StatusOr<bool> NextBlock();
  absl::StatusOr<int64_t> AppendShuffled(int64_t rows, RawBatch* raw);
  absl::StatusOr<int64_t> SkipShuffled(int64_t rows);

  const std::vector<std::string> paths_;
  const TextRange range_;
  const OnScan on_scan_;
  std::atomic<bool> cancelled_{false};

  // Only the thread that reads uses these.
  std::unique_ptr<RowReader> rows_;
  uint32_t pass_ = 0;
  int64_t next_row_ = 0;    // The next row to be handed out.
  int64_t blocks_ = 0;      // How many blocks this pass has taken from the stream.
  int64_t taken_rows_ = 0;  // Their rows, and the rows before the range.
  RawBatch block_;
  std::vector<int32_t> order_;  // The order of block_'s rows.
  size_t order_position_ = 0;
};

class TextSource : public RowFileSource {
 public:
  TextSource(std::shared_ptr<const TextFiles> files, std::shared_ptr<const TextParser> parser,
             const TextRange& range, OnScan on_scan);

  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  bool IsHeader(const RawBatch& raw, int64_t row) override {
    return parser_->IsHeader(raw.TextOf(row));
  }
  std::string PlaceOf(const RawBatch& raw, int64_t row) override;

 private:
  const std::shared_ptr<const TextFiles> files_;
  const std::shared_ptr<const TextParser> parser_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_TEXT_SOURCE_H_
