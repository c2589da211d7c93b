// Rows of text become samples: the one parser of all text formats. Columns are found by their
// names once; a line is split at its separators, and each column is read as the features say.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_
#define THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/uninitialized_vector.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/column_values.h"
#include "worker/data/list_weights.h"
#include "worker/data/text/line_stream.h"
#include "worker/data/text/value_split.h"

namespace thermocline {

// A line in its columns, which point into it or into `unquoted`. Used again and again.
struct LineColumns {
  absl::Span<const absl::string_view> columns;  // In `storage`.
  int misquoted = -1;       // The first column whose quotes are wrong; -1: none.
  size_t misquoted_at = 0;  // Its place in the line.
  std::vector<absl::string_view> storage;
  UninitializedVector<uint32_t> ends;
  std::string unquoted;  // Of columns with a doubled quote.
};

// `line` without its line end.
void SplitLine(absl::string_view line, const LineFormat& format, LineColumns* out);
// `line` without "\n" or "\r\n" at its end.
absl::string_view WithoutLineEnd(absl::string_view line);
// Names of columns: no label, no number, no empty column.
bool LooksLikeHeader(absl::Span<const absl::string_view> columns);

// Where the names of columns come from.
struct ColumnNames {
  std::vector<std::string> names;
  std::string source;       // "the header of day-1.csv", for messages
  size_t num_keys = 0;      // The last of them: keys of the files' folders, which no line has.
  bool has_header = false;  // They stand in the files.
};

// As DatasetOptions has them.
struct TextParserOptions {
  bool needs_labels = true;
  std::vector<std::string> carried_columns;
};

// Immutable; thread-safe.
class TextParser {
 public:
  // `data`: of the job, in the long form (DescribeData), not npy. Errors: kInvalidArgument (a
  // column that the job names, or that is to go along, is not there: says where it is named, and
  // which one may be meant).
  static absl::StatusOr<TextParser> Make(const Job& job, const Data& data, ColumnNames columns,
                                         const TextParserOptions& options = {});

  // Fills size, dense, labels, weights, groups, features and carried of `batch` from the rows
  // [begin, end) of `raw`. Rows that are malformed are left out, and their numbers added to `bad`.
  // keys: TextFiles::keys.
  void ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                 std::vector<int64_t>* bad,
                 absl::Span<const std::vector<std::string>> keys = {}) const;

  // What is wrong with a malformed line, the first column that is:
  //   "column 17 ('C3'): 'xyz' is not a hexadecimal number"
  //   "39 columns, not 40 (the header of day-1.csv)"
  // Of a file that seems to have another separator, or a header that it should not, it says so and
  // what to do.
  std::string Describe(absl::string_view line, absl::Span<const std::string> keys = {}) const;

  // Whether data.split.column holds a line out. Malformed ones are not.
  bool IsHeldOut(absl::string_view line, absl::Span<const std::string> keys,
                 LineColumns* scratch) const;

  // Whether a line is the header again, as in files that were joined. ParseRows leaves it out, too.
  bool IsHeader(absl::string_view line) const;

  bool has_label() const { return !labels_.empty(); }
  const LineFormat& format() const { return format_; }
  const std::vector<std::string>& column_names() const { return columns_.names; }

 private:
  struct Number {
    int column;
    NumberReader reader;
  };
  struct Keys {
    bool is_plain = false;            // A column without weights.
    int column = -1;                  // -1: a cross
    int weights = -1;                 // The column of its weights; -1: none
    std::optional<KeyReader> reader;  // Of `column`.
    std::optional<ListWeights> list_weights;
    std::vector<int> cross;  // features
    uint64_t buckets = 0;
  };

  // It makes of the values of columns what this class makes of their text, as the same job says.
  friend class ParquetParser;

  TextParser() = default;

  absl::Status AddFeatures(const Job& job);
  absl::StatusOr<int> Find(absl::string_view column, absl::string_view named_by) const;
  // What a row becomes beside its keys. weight: null where the job has none.
  struct RowValues {
    float* dense;
    float* label;
    float* weight;
  };
  // Adds to `features`, also where it returns false, and to groups and carried columns of `batch`.
  bool ParseLine(absl::string_view line, absl::Span<const std::string> keys, RowValues values,
                 std::vector<KeyBuffer>* features, LineColumns* scratch, Batch* batch) const;
  template <typename Columns>
  bool ParseRow(const Columns& columns, RowValues values, std::vector<KeyBuffer>* features) const;
  // The keys that take more than a column.
  template <typename Columns>
  bool ParseOthers(const Columns& columns, std::vector<KeyBuffer>* features) const;
  bool ParseLabel(absl::string_view text, float* label) const;
  // A finite number of 0 or more.
  static bool ParseWeight(absl::string_view text, float* weight);
  std::string DescribeCount(absl::string_view line, size_t columns) const;
  std::string DescribeColumn(int column, absl::string_view text) const;
  std::string DescribeColumns(absl::Span<const absl::string_view> columns) const;

  bool is_criteo_ = false;
  LineFormat format_;
  ColumnNames columns_;
  std::string header_, quoted_header_;  // As lines; "": there is none.
  bool needs_labels_ = true;
  std::vector<int> labels_;
  int group_ = -1;            // -1: none
  std::vector<int> carried_;  // Columns.
  std::vector<std::string> positive_;
  int weight_ = -1;  // Its column; -1: none.
  std::vector<Number> numbers_;
  std::vector<Keys> features_;
  std::optional<ValueSplit> split_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_
