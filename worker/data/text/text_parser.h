// Turns rows of text into samples. There is one parser for all text formats: it finds columns by
// their names once, splits each line at its separators, and reads each column as the features say.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_
#define THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/uninitialized_vector.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/column_values.h"
#include "worker/data/list_weights.h"
#include "worker/data/step_lists.h"
#include "worker/data/text/line_stream.h"

namespace thermocline {

// Decides by the value of a column which rows are held out (data.split.column). Immutable.
class ValueSplit {
 public:
  ValueSplit(int column, absl::string_view test_from);

  int column() const { return column_; }
  // nullopt: the value is not a number, though test_from is one; the row is malformed.
  std::optional<bool> IsHeldOut(absl::string_view value) const;

 private:
  int column_;
  std::string from_;
  std::optional<double> number_;
};

// The columns of a line. They point into the line or into `unquoted`. The buffers keep their memory
// for the next line.
struct LineColumns {
  absl::Span<const absl::string_view> columns;  // In `storage`.
  int misquoted = -1;       // The first column whose quotes are wrong; -1: none.
  size_t misquoted_at = 0;  // Where that column begins in the line.
  std::vector<absl::string_view> storage;
  UninitializedVector<uint32_t> ends;
  std::string unquoted;  // The text of columns with a doubled quote.
};

// Splits `line`, which has no line end any more.
void SplitLine(absl::string_view line, const LineFormat& format, LineColumns* out);
// Returns `line` without "\n" or "\r\n" at its end.
absl::string_view WithoutLineEnd(absl::string_view line);
// Whether these may be names of columns: none of them is a label, a number or empty.
bool LooksLikeHeader(absl::Span<const absl::string_view> columns);

// The names of a file's columns, and where they come from.
struct ColumnNames {
  std::vector<std::string> names;
  std::string source;   // For messages: "the header of day-1.csv".
  size_t num_keys = 0;  // So many names at the end are keys of the files' folders, not of lines.
  bool has_header = false;  // Whether the files' first lines have the names.
};

// See DatasetOptions.
struct TextParserOptions {
  bool needs_labels = true;
  std::vector<std::string> carried_columns;
};

// Immutable; thread-safe.
class TextParser {
 public:
  //   data: the job's data in the long form (DescribeData), not npy
  // Errors: kInvalidArgument (there is no such column as the job or options.carried_columns name:
  // says where it is named, and which one may be meant).
  static absl::StatusOr<TextParser> Make(const Job& job, const Data& data, ColumnNames columns,
                                         const TextParserOptions& options = {});

  // Fills size, dense, labels, weights, groups, features and carried of `batch` from the rows
  // [begin, end) of `raw`. Malformed rows are left out, and their numbers added to `bad`.
  //   keys: TextFiles::keys
  void ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                 std::vector<int64_t>* bad,
                 absl::Span<const std::vector<std::string>> keys = {}) const;

  // Returns what is wrong with a malformed line: with its first bad column, or their number:
  //   "column 17 ('C3'): 'xyz' is not a hexadecimal number"
  //   "39 columns, not 40 (the header of day-1.csv)"
  // If the file seems to have another separator, or a header that the job does not expect, it says
  // so, and what to do.
  std::string Describe(absl::string_view line, absl::Span<const std::string> keys = {}) const;

  // Whether data.split.column holds a line out. Malformed lines are not held out.
  bool IsHeldOut(absl::string_view line, absl::Span<const std::string> keys,
                 LineColumns* scratch) const;

  // Whether a line is the header again, as in files that were joined. ParseRows leaves it out like
  // a malformed line.
  bool IsHeader(absl::string_view line) const;

  // Returns a warning for each list of which none of `lines` has several values, while another
  // character than the job's separator divides them.
  std::vector<std::string> DoubtSeparators(absl::Span<const absl::string_view> lines) const;

  // Whether there is a column of a label that the model learns.
  bool has_label() const;
  const LineFormat& format() const { return format_; }
  const std::vector<std::string>& column_names() const { return columns_.names; }

 private:
  struct Number {
    int column;
    NumberReader reader;
  };
  struct Label {
    int column;
    int task;  // The one that learns it; -1: it is checked only.
  };
  enum class LabelState { kLabel, kMissing, kMalformed };
  // How the keys of a feature are read: from a column, or from the keys of other features.
  struct Keys {
    bool is_plain = false;            // Whether it has a column and no weights.
    int column = -1;                  // -1: the feature is a cross.
    int weights = -1;                 // The column of its weights; -1: none.
    std::optional<KeyReader> reader;  // Reads `column`.
    std::optional<ListWeights> list_weights;
    std::vector<int> cross;  // The features that a cross combines.
    uint64_t buckets = 0;
  };

  // Its plan is a TextParser: it turns values of columns into what this class makes of their text.
  friend class ParquetParser;

  TextParser() = default;

  absl::Status AddFeatures(const Job& job);
  absl::StatusOr<int> Find(absl::string_view column, absl::string_view named_by) const;
  // Where a row's values go, but for its keys.
  struct RowValues {
    float* dense;    // [num_dense]
    float* labels;   // [tasks]
    float* weights;  // [tasks]; null: a batch has none.
  };
  // These parse a row, and return false if it is malformed; they may have added keys then.
  // ParseLine also adds to groups and carried columns of `batch`.
  bool ParseLine(absl::string_view line, absl::Span<const std::string> keys, RowValues values,
                 std::vector<KeyBuffer>* features, LineColumns* scratch, Batch* batch) const;
  template <typename Columns>
  bool ParseRow(const Columns& columns, RowValues values, std::vector<KeyBuffer>* features) const;
  // Reads the keys of crosses and of lists with weights.
  template <typename Columns>
  bool ParseOthers(const Columns& columns, std::vector<KeyBuffer>* features) const;
  // Reads the labels of a row, and its weights. Returns false if it is malformed.
  template <typename Columns>
  bool ParseLabels(const Columns& columns, const RowValues& values) const;
  // Whether a text of a label, which is none, says that there is none.
  bool IsMissing(absl::string_view text) const;
  LabelState ReadLabel(const Label& label, absl::string_view text, float* value) const;
  bool has_weights() const { return weight_ >= 0 || labels_may_be_missing_; }
  // A weight is a finite number of 0 or more.
  static bool ParseWeight(absl::string_view text, float* weight);
  std::string DescribeCount(absl::string_view line, size_t columns) const;
  std::string DescribeColumn(int column, absl::string_view text) const;
  // What is wrong with a row of which all labels are missing; "" for others.
  std::string DescribeLabels(absl::FunctionRef<absl::string_view(int column)> text_of) const;
  std::string DescribeColumns(absl::Span<const absl::string_view> columns) const;

  bool is_criteo_ = false;
  LineFormat format_;
  ColumnNames columns_;
  std::string header_, quoted_header_;  // The header as a line; "": there is none.
  bool needs_labels_ = true;
  int num_tasks_ = 1;
  std::vector<Label> labels_;  // The columns lack some only where no labels are needed.
  bool labels_may_be_missing_ = false;
  MissingNumbers missing_;
  int group_ = -1;            // The column of groups; -1: none.
  std::vector<int> carried_;  // The columns that go along with the rows.
  std::vector<std::string> positive_;
  int weight_ = -1;  // The column of weights; -1: none.
  std::vector<Number> numbers_;
  std::vector<Keys> features_;
  StepLists step_lists_;
  std::optional<ValueSplit> split_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_TEXT_PARSER_H_
