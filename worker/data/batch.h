// One worker's slice of a global batch, as the reader hands it out, and where batches come from.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_H_
#define THERMOCLINE_WORKER_DATA_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// The key of a categorical column that is empty in Criteo's text form.
inline constexpr Key kEmptyCategoryKey = ~Key{0};

// Columns of the dense matrix are padded to a multiple of this, with zeros.
inline constexpr int kDenseColumnsMultiple = 8;

constexpr int PaddedDenseColumns(int num_dense) {
  return (num_dense + kDenseColumnsMultiple - 1) / kDenseColumnsMultiple * kDenseColumnsMultiple;
}

// The lookups of one feature: bag b is keys[offsets[b] .. offsets[b + 1]).
struct FeatureLookups {
  UninitializedVector<Key> keys;         // [offsets[size]]
  UninitializedVector<int32_t> offsets;  // [size + 1], offsets[0] == 0
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

// A global batch before parsing. Used again and again: its vectors keep their capacity.
struct RawBatch {
  int64_t first_row = 0;                   // Of the split, from 0.
  int64_t num_rows = 0;                    // Of the whole global batch.
  int64_t slice_begin = 0, slice_end = 0;  // The reader's slice of it.
  double pass_progress = 0;  // Share of the pass that is read with this batch, in (0, 1].

  // Text formats: row i of the batch is text[line_begin[i] .. line_begin[i + 1]), newline included;
  // a row with line ends in quotes is several lines of its file. At least kTextPadding readable
  // bytes follow the last.
  UninitializedVector<char> text;
  UninitializedVector<uint64_t> line_begin;  // [num_rows + 1]
  // Where rows come from: those from `row` on, up to that of the next entry, are lines of one file,
  // one after the other. In the order of `row`.
  struct Origin {
    int64_t row = 0;
    int file = 0;
    int64_t line = 0;  // from 1; the first of the row's
  };
  std::vector<Origin> origins;

  // Back to no rows of text.
  void ClearText() {
    num_rows = 0;
    line_begin.assign(1, 0);
    origins.clear();
  }
  // Says where row `num_rows`, the next to be added, comes from.
  void AddOrigin(int file, int64_t line) {
    if (!origins.empty()) {
      const Origin& last = origins.back();
      if (last.file == file && last.line + (num_rows - last.row) == line) return;
    }
    origins.push_back({num_rows, file, line});
  }
  // REQUIRES: a row of text
  Origin OriginOf(int64_t at) const {
    auto origin = std::upper_bound(origins.begin(), origins.end(), at,
                                   [](int64_t value, const Origin& o) { return value < o.row; });
    --origin;
    return {at, origin->file, origin->line + (at - origin->row)};
  }
  absl::string_view TextOf(int64_t row) const {
    return {text.data() + line_begin[row], line_begin[row + 1] - line_begin[row]};
  }
};

inline constexpr size_t kTextPadding = 64;

// Makes room for `bytes` more after the first `used` of `text`, and the padding.
inline void ReserveText(size_t used, size_t bytes, UninitializedVector<char>* text) {
  const size_t wanted = used + bytes + kTextPadding;
  if (text->size() < wanted) text->resize(std::max(wanted, 2 * text->size()));
}

// Where batches come from: the reading and the parsing of a format, rows in order from a position,
// which BatchReader runs on threads of its own. Implementations: TextSource, NpySource.
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
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_H_
