// Rows of Parquet columns become samples: the same keys and numbers that the text of the values in
// a CSV file gives (docs/formats.md), column by column.
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

// The keys of one feature for each value of a dictionary: what many rows share is hashed once.
// Thread-safe.
struct DictionaryKeys {
  enum class State : uint8_t { kKey, kNoKey, kMalformed };

  std::once_flag filled;
  std::vector<Key> keys;      // Of each value, where there is one.
  std::vector<State> states;  // Of each value.
};

// Neighbouring rows of one row group, decoded. Immutable once it is filled.
struct ParquetBlock {
  int file = 0;
  int row_group = 0;      // From 0.
  int64_t first_row = 0;  // Within the row group, from 0.
  int64_t rows = 0;
  std::vector<ParquetCells> cells;                    // Of ParquetParser::columns().
  std::vector<std::shared_ptr<DictionaryKeys>> keys;  // Of each feature; null: no dictionary.
};

// Immutable; thread-safe.
class ParquetParser {
 public:
  // `columns`: of the first file, `path`. Errors: kInvalidArgument (a column that the job names is
  // not there, or its type is none that the job can use it as: says which, and what is).
  static absl::StatusOr<ParquetParser> Make(const Job& job, const Data& data,
                                            const std::string& path,
                                            const std::vector<ParquetColumn>& columns,
                                            const TextParserOptions& options = {});

  bool has_label() const { return plan_.has_label(); }

  // The columns that are read.
  const std::vector<ParquetColumn>& columns() const { return columns_; }

  // Their places in another file. Errors: kInvalidArgument (one is not there, or has another type).
  absl::StatusOr<std::vector<int>> Find(const std::string& path,
                                        const std::vector<ParquetColumn>& columns) const;

  // Sets `keys` of a block, which shares those of the block `before` it (null: none) where both
  // have the same dictionary.
  void ShareDictionaries(const ParquetBlock* before, ParquetBlock* block) const;

  // As TextParser::ParseRows, of rows in blocks.
  void ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                 std::vector<int64_t>* bad) const;

  // What is wrong with a malformed row, the first column that is: "column 'price': 'x' is not a
  // number".
  std::string Describe(const ParquetBlock& block, int64_t row) const;

  // The place of data.split.column among columns(). REQUIRES: the job has one
  int split_place() const { return places_[plan_.split_->column()]; }
  // Whether `cells` of that column hold a row out. Malformed ones are not.
  bool IsHeldOut(const ParquetCells& cells, int64_t row) const;

 private:
  using Row = RawBatch::ColumnRow;
  // One column of a block, while its rows are read.
  struct Cursor;

  explicit ParquetParser(TextParser plan) : plan_(std::move(plan)) {}

  void AddColumns(const std::vector<ParquetColumn>& columns);
  absl::Status CheckColumns(const Job& job, const std::string& path) const;
  // A column of the file that the job uses.
  const ParquetColumn& Column(int column) const { return columns_[places_[column]]; }
  // Whether texts of the column may be lists, which are divided.
  static bool Divides(const KeyReader& reader, const ParquetColumn& column);
  static void Fill(const KeyReader& reader, const ParquetColumn& column,
                   const ParquetValues& values, DictionaryKeys* known);

  // Fills `batch` with all of `rows`, and sets is_bad[i] where rows[i] is malformed.
  void ReadRows(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  // Calls f(i, text) with the text of a column, which is no list, of each row.
  template <typename F>
  void ForEachText(const std::vector<Row>& rows, int column, const F& f) const;
  // And weights, where there are any; and whether data.split can be decided.
  void ReadLabels(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  // Groups, and what goes along with the rows.
  void ReadTexts(const std::vector<Row>& rows, Batch* batch) const;
  void ReadNumbers(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad, Batch* batch) const;
  void ReadKeys(const std::vector<Row>& rows, size_t feature, std::vector<uint8_t>* is_bad,
                FeatureLookups* lookups) const;
  // As ReadKeys, of a feature with weights.
  void ReadWeightedKeys(const std::vector<Row>& rows, size_t feature, std::vector<uint8_t>* is_bad,
                        FeatureLookups* lookups) const;
  void AddCrosses(const std::vector<uint8_t>& is_bad, Batch* batch) const;
  // Add the keys of a row's list, and of value `i` (-1: null). `known`: of the dictionary, or null.
  static bool ReadList(const KeyReader& reader, const Cursor& cursor, const DictionaryKeys* known,
                       int64_t row, std::string* scratch, KeyBuffer* keys);
  static bool ReadWeightedList(const TextParser::Keys& feature, const Cursor& cursor,
                               const Cursor& numbers, int64_t row, std::string* scratch,
                               KeyBuffer* keys);
  static bool AddCell(const KeyReader& reader, const Cursor& cursor, const DictionaryKeys* known,
                      int64_t i, bool divides, std::string* scratch, KeyBuffer* keys);
  std::string DescribeList(int column, const ParquetCells& cells, int64_t row) const;
  std::string DescribeWeights(const TextParser::Keys& feature, const ParquetBlock& block,
                              int64_t row) const;

  TextParser plan_;          // What becomes of which column of the first file.
  std::vector<int> places_;  // In columns_, of each column of the first file; -1: it isn't read.
  std::vector<ParquetColumn> columns_;
  // data.split.test_from where its column is one of dates or times: in its units since 1970.
  std::optional<int64_t> test_from_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_PARSER_H_
