// One worker's slice of a global batch, as the reader hands it out, and where batches come from.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_H_
#define THERMOCLINE_WORKER_DATA_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/raw_batch.h"

namespace thermocline {

// The key of a categorical column that is empty in Criteo's text form.
inline constexpr Key kEmptyCategoryKey = ~Key{0};

// Columns of the dense matrix are padded to a multiple of this, with zeros.
inline constexpr int kDenseColumnsMultiple = 8;

constexpr int PaddedDenseColumns(int num_dense) {
  return (num_dense + kDenseColumnsMultiple - 1) / kDenseColumnsMultiple * kDenseColumnsMultiple;
}

// The lookups of one feature: bag b is keys[offsets[b] .. offsets[b + 1]). Where it has weights,
// the bag is pooled to the sum of weights times rows, also by a feature whose pooling is MEAN: the
// reader has divided them.
struct FeatureLookups {
  UninitializedVector<Key> keys;         // [offsets[size]]
  UninitializedVector<int32_t> offsets;  // [size + 1], offsets[0] == 0
  UninitializedVector<float> weights;    // [offsets[size]]; empty where the feature has none
};

// A plain value that is used again and again: its vectors keep their capacity.
struct Batch {
  Step step;                   // The global batch, counted over all passes.
  int size = 0;                // Samples here: this worker's slice. May be 0.
  int64_t global_samples = 0;  // Rows of the whole global batch, over all workers.
  uint32_t pass = 0;           // Over the data, from 0.
  bool begins_pass = false;    // It has the first row of the data.
  int64_t padding_ids = 0;     // That were left out of the bags.
  double progress = 0;         // Share of all the reading that is done with this batch, in (0, 1].

  int num_dense = 0;
  int dense_stride = 0;                  // PaddedDenseColumns(num_dense)
  UninitializedVector<float> dense;      // [size, dense_stride], columns from num_dense on are 0
  UninitializedVector<float> labels;     // [size], 0 or 1
  UninitializedVector<float> weights;    // [size], 0 or more; empty where the job has none
  std::vector<uint64_t> groups;          // [size], equal where data.group is; {}: it is not set
  std::vector<FeatureLookups> features;  // In the job's order.
  int64_t first_row = 0;                 // Of the slice, in its split, from 0.
  std::vector<int64_t> left_out;         // Malformed rows of the slice, counted from its first.
  std::vector<std::vector<std::string>> carried;  // [size] of each of DatasetOptions.

  absl::Span<const float> dense_row(int sample) const {  // [num_dense]
    return absl::MakeConstSpan(dense).subspan(static_cast<size_t>(sample) * dense_stride,
                                              num_dense);
  }
};

// What lies before the first batch that is handed out. Malformed lines count as samples: they were
// not parsed.
struct SkippedBatches {
  int64_t steps = 0;
  uint64_t samples = 0;         // That this worker would have been handed.
  uint64_t global_samples = 0;  // Of all workers.
};

// Where a source begins that has a stretch of the training alone, such as a run of hot batches.
struct StretchPlace {
  Step first_step{0};  // Of the source's first batch.
  uint32_t first_pass = 0;
  bool begins_pass = true;  // The source's first batch is the first of the pass.
  // Batch::progress goes from one to the other.
  double progress_before = 0;
  double progress_through = 1;
  SkippedBatches before;  // first_step
};

// Where batches come from: the reading and the parsing of a format, rows in order from a position,
// which BatchReader runs on threads of its own. Implementations: TextSource, ParquetSource,
// NpySource.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Starts the split from its first row. Called before each pass that is read, with its number.
  virtual absl::Status Rewind(uint32_t pass) = 0;

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

  // Whether a row that Parse() left out is none: a header that stands again. Thread-safe.
  virtual bool IsHeader(const RawBatch&, int64_t) { return false; }

  // Where a row of `raw` stands: file and line. Thread-safe.
  virtual std::string PlaceOf(const RawBatch& raw, int64_t row) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_H_
