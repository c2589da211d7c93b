// Reads and writes Parquet files as plain columns. Arrow C++, which needs C++20, is known in this
// folder alone. In a build without Arrow every function returns the error of RequireArrow().
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

// The name and type of a column of a file.
struct ParquetColumn {
  enum class Kind {
    kInteger,      // signed, and unsigned of up to 32 bits
    kUnsigned,     // unsigned of 64 bits
    kBool,         // 0 or 1
    kFloat,        // float32
    kDouble,       // float64
    kText,         // strings and bytes
    kDate,         // days since 1970-01-01
    kTimestamp,    // since 1970-01-01 00:00:00, in UTC
    kUnsupported,  // can't be read
  };

  std::string name;  // The field of a group is named "group.field".
  Kind kind = Kind::kUnsupported;
  bool is_list = false;
  int64_t units_per_second = 1;  // kTimestamp
  std::string type;              // For messages: "int64", "list of string", "timestamp[us]".
};

// Values of one column, one after the other, without nulls. The column's kind says which of the
// vectors are filled.
struct ParquetValues {
  size_t size = 0;
  bool is_dictionary = false;             // Whether these are the distinct values of many rows.
  UninitializedVector<int64_t> integers;  // [size]: kInteger to kBool, kDate, kTimestamp
  UninitializedVector<double> reals;      // [size]: kFloat (exact), kDouble
  UninitializedVector<char> bytes;        // kText: value i is bytes[ends[i - 1] .. ends[i])
  UninitializedVector<uint64_t> ends;     // [size]

  absl::string_view text(size_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return {bytes.data() + begin, ends[i] - begin};
  }
};

// The cells of one column in neighbouring rows.
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

// Appends the text of value i, as a CSV file would have it (docs/formats.md). Integers are decimal,
// floats the shortest form that reads back, booleans 0 and 1, times "2026-11-20 12:34:56.789" and
// dates "2026-11-20".
// REQUIRES: a supported kind
void AppendParquetText(const ParquetColumn& column, const ParquetValues& values, size_t i,
                       std::string* text);

// Returns OK if this build has Arrow, else kFailedPrecondition, which says how to get it.
//   what: names the thing that needs it, for the message: "data/day.parquet"
absl::Status RequireArrow(absl::string_view what);

// A Read() returns at most this many values of a column of lists: their indices are int32.
inline constexpr int64_t kMaxListValues = std::numeric_limits<int32_t>::max();

// One open file. Not thread-safe.
class ParquetFile {
 public:
  // Reads the footer of a local file, or of an object of `store` if `path` begins with "s3://".
  // `store`, null for local files, must outlive the file. Tests lower max_list_values.
  // Errors: kNotFound, kPermissionDenied, kDataLoss (cut short, damaged, or not Parquet; a row
  // group claims an impossible number of rows), kFailedPrecondition (no Arrow), kUnavailable; each
  // names the file.
  static absl::StatusOr<std::unique_ptr<ParquetFile>> Open(
      const std::string& path, ObjectStore* store = nullptr,
      int64_t max_list_values = kMaxListValues);
  virtual ~ParquetFile() = default;

  virtual const std::vector<ParquetColumn>& columns() const = 0;
  virtual const std::vector<int64_t>& row_group_rows() const = 0;
  virtual int64_t rows() const = 0;

  // Sets where the next Read() begins (`row`, from 0) and what it reads (`columns`, indices into
  // columns()). It reads no row groups before that of `row`.
  // REQUIRES: 0 <= row <= rows(); columns of supported kinds
  virtual absl::Status Seek(int64_t row, std::vector<int> columns) = 0;

  // Reads up to `rows` rows, all of one row group, and returns how many; 0 at the end of the file.
  // `cells` gets one entry for each column of Seek(). Errors: kDataLoss (names file, row group and
  // column), kInvalidArgument (more values of lists than kMaxListValues: names the row, too),
  // kUnavailable.
  virtual absl::StatusOr<int64_t> Read(int64_t rows, std::vector<ParquetCells>* cells) = 0;
};

// A column that ParquetWriter can write: int64, float32, float64 or UTF-8 text, without nulls.
struct ParquetOutput {
  std::string name;
  std::variant<std::vector<int64_t>, std::vector<float>, std::vector<double>,
               std::vector<std::string>>
      values;
};

// Writes a local file, row group by row group. Close() puts it in the place of a file of the same
// path. Not thread-safe.
class ParquetWriter {
 public:
  // Errors: kNotFound, kPermissionDenied, kUnavailable, kFailedPrecondition (no Arrow).
  static absl::StatusOr<std::unique_ptr<ParquetWriter>> Create(const std::string& path);
  // Without Close() nothing is left at `path`.
  virtual ~ParquetWriter() = default;

  // Adds one row group. All calls have columns of the same names and types; the columns of one call
  // have the same number of values.
  virtual absl::Status Append(const std::vector<ParquetOutput>& columns) = 0;
  // REQUIRES: Append() was called
  virtual absl::Status Close() = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_PARQUET_H_
