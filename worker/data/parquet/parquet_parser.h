// Turns rows of Parquet columns into samples, column by column. The keys and numbers are those that
// the text of the same values in a CSV file gives (docs/formats.md).
#ifndef THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_PARSER_H_
#define THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_PARSER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/parquet.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {

// The keys of one feature for each value of a dictionary, so that a value is hashed once for all
// rows that have it. Thread-safe: the first thread fills it.
struct DictionaryKeys {
  enum class State : uint8_t { kKey, kNoKey, kMalformed };

  std::once_flag filled;
  std::vector<Key> keys;      // [values] Only with state kKey.
  std::vector<State> states;  // [values]
};

// Neighbouring rows of one row group, decoded. Immutable once it is filled.
struct ParquetBlock {
  int file = 0;
  int row_group = 0;      // From 0.
  int64_t first_row = 0;  // Within the row group, from 0.
  int64_t rows = 0;
  std::vector<ParquetCells> cells;                    // [ParquetParser::columns()]
  std::vector<std::shared_ptr<DictionaryKeys>> keys;  // [features] null: no dictionary.
};

// Immutable; thread-safe.
class ParquetParser {
 public:
  //   columns: the columns of the first file, whose path is `path`
  // Errors: kInvalidArgument (a column that the job names is not there, or the job can't use one of
  // its type so: says which, and what there is).
  static absl::StatusOr<ParquetParser> Make(const Job& job, const Data& data,
                                            const std::string& path,
                                            const std::vector<ParquetColumn>& columns,
                                            const TextParserOptions& options = {});

  bool has_label() const { return plan_.has_label(); }

  // The columns that are read.
  const std::vector<ParquetColumn>& columns() const { return columns_; }

  // Returns their indices in another file. Errors: kInvalidArgument (one is not there, or has
  // another type).
  absl::StatusOr<std::vector<int>> Find(const std::string& path,
                                        const std::vector<ParquetColumn>& columns) const;

  // Sets the keys of a block. Where the block `before` it (null: none) has the same dictionary,
  // both share its keys.
  void ShareDictionaries(const ParquetBlock* before, ParquetBlock* block) const;

  // Does what TextParser::ParseRows does, for rows in blocks.
  void ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                 std::vector<int64_t>* bad) const;

  // Returns what is wrong with the first bad column of a malformed row: "column 'price': 'x' is not
  // a number".
  std::string Describe(const ParquetBlock& block, int64_t row) const;

  // The index of data.split.column in columns(). REQUIRES: the job has one
  int split_place() const { return places_[plan_.split_->column()]; }
  // Whether `cells`, which are of that column, hold a row out. Malformed rows are not held out.
  bool IsHeldOut(const ParquetCells& cells, int64_t row) const;

 private:
  using Row = RawBatch::ColumnRow;
  // Reads one column of the blocks, row by row.
  struct Cursor;

  explicit ParquetParser(TextParser plan) : plan_(std::move(plan)) {}

  void AddColumns(const std::vector<ParquetColumn>& columns);
  absl::Status CheckColumns(const Job& job, const std::string& path) const;
  // Returns the column with index `column` in the first file. REQUIRES: the job uses it
  const ParquetColumn& Column(int column) const { return columns_[places_[column]]; }
  // Whether a text of the column may be a list of several values.
  static bool Divides(const KeyReader& reader, const ParquetColumn& column);
  static void Fill(const KeyReader& reader, const ParquetColumn& column,
                   const ParquetValues& values, DictionaryKeys* known);

  // Fills `batch` with all of `rows`, and sets is_bad[i] where rows[i] is malformed.
  void ReadRows(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  // Calls f(i, text) with the text of a column, which is no list, of each row.
  template <typename F>
  void ForEachText(const std::vector<Row>& rows, int column, const F& f) const;
  // Reads labels and weights, and checks that data.split can be decided.
  void ReadLabels(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  // Reads groups and carried columns.
  void ReadTexts(const std::vector<Row>& rows, Batch* batch) const;
  void ReadNumbers(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  // lengths: [rows] gets how many values each row's list has; null: they are not wanted
  void ReadKeys(const std::vector<Row>& rows, size_t feature, std::vector<uint8_t>* is_bad,
                FeatureLookups* lookups, std::vector<size_t>* lengths) const;
  // Does what ReadKeys does, for a feature with weights.
  void ReadWeightedKeys(const std::vector<Row>& rows, size_t feature, std::vector<uint8_t>* is_bad,
                        FeatureLookups* lookups) const;
  void AddCrosses(const std::vector<uint8_t>& is_bad, Batch* batch) const;
  // These add the keys of a row's list, or of value `i` (-1: null). They return false if it is
  // malformed.
  //   known: the keys of the column's dictionary; null: it has none
  static bool ReadList(const KeyReader& reader, const Cursor& cursor, const DictionaryKeys* known,
                       int64_t row, std::string* scratch, KeyBuffer* keys);
  static bool ReadWeightedList(const TextParser::Keys& feature, const Cursor& cursor,
                               const Cursor& numbers, int64_t row, std::string* scratch,
                               KeyBuffer* keys);
  static bool AddCell(const KeyReader& reader, const Cursor& cursor, const DictionaryKeys* known,
                      int64_t i, bool divides, std::string* scratch, KeyBuffer* keys);
  size_t CountValues(int feature, const ParquetBlock& block, int64_t row) const;
  std::string DescribeList(int column, const ParquetCells& cells, int64_t row) const;
  std::string DescribeWeights(const TextParser::Keys& feature, const ParquetBlock& block,
                              int64_t row) const;

  TextParser plan_;          // Says how each column of the first file is used.
  std::vector<int> places_;  // [columns of the first file] Indices in columns_; -1: it isn't read.
  std::vector<ParquetColumn> columns_;
  // data.split.test_from in the units of its column, since 1970, if that has dates or times.
  std::optional<int64_t> test_from_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_PARSER_H_
