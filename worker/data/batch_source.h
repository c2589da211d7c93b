// Where batches come from: a format's reading and its parsing, which BatchReader runs on threads of
// its own. Implementations: TsvSource, NpySource.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch.h"

namespace thermocline {

// A global batch before parsing. Used again and again: its vectors keep their capacity.
struct RawBatch {
  int64_t first_row = 0;  // Of the split, from 0.
  int64_t num_rows = 0;   // Of the whole global batch.
  // The reader's slice of it.
  int64_t slice_begin = 0;
  int64_t slice_end = 0;
  // Share of the pass that is read with this batch, in (0, 1].
  double pass_progress = 0;

  // Text formats: row i of the batch is text[line_begin[i] .. line_begin[i + 1]), newline included.
  // At least kTextPadding readable bytes follow the last.
  UninitializedVector<char> text;
  UninitializedVector<uint64_t> line_begin;  // [num_rows + 1]
  uint64_t first_line = 0;                   // Line number in the file of row 0, from 1.
};

inline constexpr size_t kTextPadding = 64;

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Starts the split from its first row. Called before each pass.
  virtual absl::Status Rewind() = 0;

  // Reads up to `batch_size` rows; false (and no row) at the end of the pass. Sets everything in
  // `raw` but the slice. Errors: kDataLoss, kNotFound, kInvalidArgument, each with the file.
  virtual absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) = 0;

  // Passes over up to `rows` rows without parsing them; fewer where the pass ends. Returns how
  // many. Errors: as Read().
  virtual absl::StatusOr<int64_t> Skip(int64_t rows) = 0;

  // Fills size, dense, labels and features of `batch` from the slice of `raw`. Rows that can't be
  // parsed are left out, and their numbers within `raw` added to `bad_rows`.
  // Thread-safe, also against Read() into another RawBatch.
  virtual absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) = 0;

  // Makes Read(), Skip() and Rewind() return kCancelled, soon also where they run already.
  // Thread-safe.
  virtual void Cancel() = 0;

  // Why a row of `raw` can't be parsed. Thread-safe.
  virtual absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_SOURCE_H_
