// A global batch that was read but not parsed yet: rows of text, or of columns.
#ifndef THERMOCLINE_WORKER_DATA_RAW_BATCH_H_
#define THERMOCLINE_WORKER_DATA_RAW_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

struct ParquetBlock;  // parquet_parser.h

// A global batch before parsing. Readers use it again and again, so the vectors keep their
// capacity.
struct RawBatch {
  int64_t first_row = 0;  // The batch's first row in the split, from 0.
  int64_t num_rows = 0;   // The rows of the whole global batch.
  // The reader's slice: rows [slice_begin, slice_end) of the batch.
  int64_t slice_begin = 0;
  int64_t slice_end = 0;
  // Share of the pass that is read with this batch, in (0, 1].
  double pass_progress = 0;

  // Text formats: row i of the batch is text[line_begin[i] .. line_begin[i + 1]), newline included.
  // A row with line ends in quotes is several lines of its file. At least kTextPadding readable
  // bytes follow the last row.
  UninitializedVector<char> text;
  UninitializedVector<uint64_t> line_begin;  // [num_rows + 1]
  // Where rows come from: the rows from `row` on, up to the next entry's `row`, are lines of one
  // file, one after the other.
  struct Origin {
    int64_t row = 0;
    int file = 0;
    int64_t line = 0;  // The first line of row `row`, from 1.
  };
  std::vector<Origin> origins;  // Ascending by `row`.

  // Parquet: row i of the batch is row column_rows[i].row of its block. `blocks` owns these blocks,
  // and maybe others.
  struct ColumnRow {
    const ParquetBlock* block = nullptr;
    int32_t row = 0;
  };
  std::vector<ColumnRow> column_rows;  // [num_rows]
  std::vector<std::shared_ptr<const ParquetBlock>> blocks;

  // Removes all rows, of either kind.
  void ClearText() {
    num_rows = 0;
    line_begin.assign(1, 0);
    origins.clear();
    column_rows.clear();
    blocks.clear();
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

// Makes room in `text` for `bytes` more bytes after the first `used`, and for the padding.
inline void ReserveText(size_t used, size_t bytes, UninitializedVector<char>* text) {
  const size_t wanted = used + bytes + kTextPadding;
  if (text->size() < wanted) text->resize(std::max(wanted, 2 * text->size()));
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_RAW_BATCH_H_
