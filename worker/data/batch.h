// A batch: one worker's slice of a global batch, as the reader hands it out. And BatchSource, the
// interface of the formats that batches are read from.
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

// The key of missing values: an empty text of a categorical column, for instance.
inline constexpr Key kEmptyCategoryKey = ~Key{0};

// Columns of the dense matrix are padded to a multiple of this, with zeros.
inline constexpr int kDenseColumnsMultiple = 8;

constexpr int PaddedDenseColumns(int num_dense) {
  return (num_dense + kDenseColumnsMultiple - 1) / kDenseColumnsMultiple * kDenseColumnsMultiple;
}

// The lookups of one feature: bag b is keys[offsets[b] .. offsets[b + 1]). With weights, a bag is
// pooled to the sum of weights times rows, also where the feature's pooling is MEAN: the reader has
// divided the weights already.
struct FeatureLookups {
  UninitializedVector<Key> keys;         // [offsets[size]]
  UninitializedVector<int32_t> offsets;  // [size + 1], offsets[0] == 0
  UninitializedVector<float> weights;    // [offsets[size]]; empty if the feature has none
};

// A plain value. Readers use batches again and again, so the vectors keep their capacity.
struct Batch {
  Step step;                   // The global batch's number, counted over all passes.
  int size = 0;                // Samples of this worker's slice. May be 0.
  int64_t global_samples = 0;  // Rows of the whole global batch, over all workers.
  uint32_t pass = 0;           // The pass over the data, from 0.
  bool begins_pass = false;    // The global batch has the first row of the data.
  int64_t padding_ids = 0;     // Ids that were left out of the bags, since they are padding.
  double progress = 0;         // Share of all the reading that is done with this batch, in (0, 1].

  int num_dense = 0;
  int dense_stride = 0;              // PaddedDenseColumns(num_dense)
  UninitializedVector<float> dense;  // [size, dense_stride], columns from num_dense on are 0
  // The labels that the model learns, of which each sample has num_tasks. One that is missing is 0,
  // and its weight 0 (where the reader needs no labels: not a number).
  int num_tasks = 1;
  UninitializedVector<float> labels;  // [size, num_tasks], 0 or 1
  // [size, num_tasks], 0 or more; empty if the job has no weights and labels are never missing
  UninitializedVector<float> weights;
  std::vector<uint64_t> groups;          // [size], equal where data.group is; {}: it is not set
  std::vector<FeatureLookups> features;  // In the order of JobTables::features.
  int64_t first_row = 0;                 // The slice's first row in the split, from 0.
  int64_t slice_begin = 0;               // The slice's first row in the global batch, from 0.
  std::vector<int64_t> left_out;         // Malformed rows of the slice, counted from its first.
  std::vector<std::vector<std::string>> carried;  // [DatasetOptions::carried_columns][size]

  absl::Span<const float> dense_row(int sample) const {  // [num_dense]
    return absl::MakeConstSpan(dense).subspan(static_cast<size_t>(sample) * dense_stride,
                                              num_dense);
  }
};

// How much comes before the first batch that is handed out. Malformed lines count as samples, since
// they were not parsed.
struct SkippedBatches {
  int64_t steps = 0;
  uint64_t samples = 0;         // Samples of this worker's slices.
  uint64_t global_samples = 0;  // Samples of all workers.
};

// Where a source stands in a training of which it has a part alone, such as a run of hot batches.
struct SourcePlace {
  Step first_step{0};  // The step of the source's first batch.
  uint32_t first_pass = 0;
  bool begins_pass = true;  // The source's first batch is the first of the pass.
  // Batch::progress goes from one to the other.
  double progress_before = 0;
  double progress_through = 1;
  SkippedBatches before;  // What lies before first_step.
};

// Reads and parses the rows of one split, in order, in one format. BatchReader runs it: one thread
// reads, others parse. Implementations: TextSource, ParquetSource, NpySource; SampledSource, which
// skips blocks of another source; KeptRows' source.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Goes back to the split's first row. Called before each pass that is read, with its number.
  virtual absl::Status Rewind(uint32_t pass) = 0;

  // Reads up to `batch_size` rows. Returns false, and reads no row, at the end of the pass. Sets
  // everything in `raw` but the slice. Errors: kDataLoss, kNotFound, kInvalidArgument; each names
  // the file.
  virtual absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) = 0;

  // Passes over up to `rows` rows without parsing them, fewer if the pass ends. Returns how many.
  // Errors: Read()'s.
  virtual absl::StatusOr<int64_t> Skip(int64_t rows) = 0;

  // Fills size, dense, labels and features of `batch` from the slice of `raw`. The features are
  // those of the job (EmbeddedFeatures), of which the reader makes lookups. Rows that can't be
  // parsed are left out, and their numbers within `raw` added to `bad_rows`.
  // Thread-safe, also against Read() into another RawBatch.
  virtual absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) = 0;

  // Makes Read(), Skip() and Rewind() return kCancelled; calls that run already return it soon.
  // Thread-safe.
  virtual void Cancel() = 0;

  // Returns the error of a row of `raw` that can't be parsed. Thread-safe.
  virtual absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) = 0;

  // Whether a row that Parse() left out is the header again, and so no bad row. Thread-safe.
  virtual bool IsHeader(const RawBatch&, int64_t) { return false; }

  // Returns where a row of `raw` comes from: file and line. Thread-safe.
  virtual std::string PlaceOf(const RawBatch& raw, int64_t row) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_H_
