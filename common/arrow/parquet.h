// Parquet files as plain columns, and the one place that knows Arrow C++ (which needs C++20).
//
// A build on a machine without Arrow has these functions too; each then returns the error of
// RequireArrow().
#ifndef THERMOCLINE_COMMON_ARROW_PARQUET_H_
#define THERMOCLINE_COMMON_ARROW_PARQUET_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/arrow/object_store.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

struct ParquetColumn {
  enum class Kind {
    kInteger,      // signed
    kUnsigned,     // of 64 bits; narrower ones are kInteger
    kBool,         // 0 or 1
    kFloat,        // float32
    kDouble,       // float64
    kText,         // strings and bytes
    kDate,         // days since 1970-01-01
    kTimestamp,    // since 1970-01-01 00:00:00, in UTC
    kUnsupported,  // can't be read
  };

  std::string name;  // Of a field of a group: "group.field".
  Kind kind = Kind::kUnsupported;
  bool is_list = false;
  int64_t units_per_second = 1;  // kTimestamp
  std::string type;              // For messages: "int64", "list of string", "timestamp[us]".
};

// Values of one column, one after the other, without nulls.
struct ParquetValues {
  size_t size = 0;
  bool is_dictionary = false;             // The different values of many rows.
  UninitializedVector<int64_t> integers;  // [size]: kInteger to kBool, kDate, kTimestamp
  UninitializedVector<double> reals;      // [size]: kFloat (exact), kDouble
  UninitializedVector<char> bytes;        // kText: value i is bytes[ends[i - 1] .. ends[i])
  UninitializedVector<uint64_t> ends;     // [size]

  absl::string_view text(size_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return {bytes.data() + begin, ends[i] - begin};
  }
};

// One column of neighbouring rows.
struct ParquetCells {
  std::shared_ptr<const ParquetValues> values;
  // Cell i has values[indices[i]], or is null where that is -1. Empty: cell i has values[i].
  UninitializedVector<int32_t> indices;
  // A list column: row r has the cells [offsets[r], offsets[r + 1]), none where the list is null or
  // empty. Empty: each row has one cell.
  UninitializedVector<int32_t> offsets;

  int64_t index(size_t cell) const {
    return indices.empty() ? static_cast<int64_t>(cell) : indices[cell];
  }
};

// Adds the text of a value, as a CSV file would have it (docs/formats.md). Integers are decimal,
// floats the shortest form that reads back, booleans 0 and 1, times "2026-11-20 12:34:56.789" and
// dates "2026-11-20".
// REQUIRES: a supported kind
void AppendParquetText(const ParquetColumn& column, const ParquetValues& values, size_t i,
                       std::string* text);

// OK where this build has Arrow; else kFailedPrecondition, which says how to get it. `what` is what
// needs it, for the message: "data/day.parquet".
absl::Status RequireArrow(absl::string_view what);

// Values of a column of lists in the rows of one Read(): their places are int32 numbers.
inline constexpr int64_t kMaxListValues = std::numeric_limits<int32_t>::max();

// One open file. Not thread-safe.
class ParquetFile {
 public:
  // Reads the footer of a local file, or of an object of `store` where `path` begins with "s3://".
  // `store`, null for local files, outlives the file. Tests lower max_list_values.
  // Errors: kNotFound, kPermissionDenied, kDataLoss (cut short, damaged, or not Parquet; its row
  // groups have numbers of rows that can't be), kFailedPrecondition (no Arrow), kUnavailable; each
  // names the file.
  static absl::StatusOr<std::unique_ptr<ParquetFile>> Open(
      const std::string& path, ObjectStore* store = nullptr,
      int64_t max_list_values = kMaxListValues);
  virtual ~ParquetFile() = default;

  virtual const std::vector<ParquetColumn>& columns() const = 0;
  virtual const std::vector<int64_t>& row_group_rows() const = 0;
  virtual int64_t rows() const = 0;

  // Goes to `row`, from 0; Read() begins there with these columns, by their places in columns().
  // Row groups before that of `row` are not read.
  // REQUIRES: 0 <= row <= rows(); columns of supported kinds
  virtual absl::Status Seek(int64_t row, std::vector<int> columns) = 0;

  // Reads up to `rows` rows, of one row group, and returns how many; 0 at the end of the file.
  // `cells` has one entry for each column of Seek(). Errors: kDataLoss (names file, row group and
  // column), kInvalidArgument (more values of lists than kMaxListValues: names the row, too),
  // kUnavailable.
  virtual absl::StatusOr<int64_t> Read(int64_t rows, std::vector<ParquetCells>* cells) = 0;
};

// What WriteParquet can write: int64, float32, float64 and UTF-8 text, none of it null.
struct ParquetOutput {
  std::string name;
  std::variant<std::vector<int64_t>, std::vector<float>, std::vector<double>,
               std::vector<std::string>>
      values;
};

// Writes a local file, row group by row group; it replaces one that is there when it is closed.
// Not thread-safe.
class ParquetWriter {
 public:
  // Errors: kNotFound, kPermissionDenied, kUnavailable, kFailedPrecondition (no Arrow).
  static absl::StatusOr<std::unique_ptr<ParquetWriter>> Create(const std::string& path);
  // Without Close() nothing is left at `path`.
  virtual ~ParquetWriter() = default;

  // Adds one row group. All calls have columns of the same names and types, of as many values each.
  virtual absl::Status Append(const std::vector<ParquetOutput>& columns) = 0;
  // REQUIRES: Append() was called
  virtual absl::Status Close() = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_PARQUET_H_
