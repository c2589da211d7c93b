#include "worker/data/parquet/parquet_parser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"

namespace thermocline {
namespace {

using Kind = ParquetColumn::Kind;

// Integers up to this are float32 numbers exactly.
constexpr double kMostExactFloat = 1 << 24;

bool IsNan(const ParquetColumn& column, const ParquetValues& values, size_t i) {
  return (column.kind == Kind::kFloat || column.kind == Kind::kDouble) &&
         std::isnan(values.reals[i]);
}

// Returns the text of value `i`; "" for a value that counts as missing. It points into `values` or
// `*scratch`.
absl::string_view TextOf(const ParquetColumn& column, const ParquetValues& values, int64_t i,
                         std::string* scratch) {
  if (i < 0 || IsNan(column, values, i)) return "";
  if (column.kind == Kind::kText) return values.text(i);
  scratch->clear();
  AppendParquetText(column, values, i, scratch);
  return *scratch;
}

// Adds the keys of value `i`.
//   divides: whether a text may be a list of several values
bool AddValue(const KeyReader& reader, const ParquetColumn& column, const ParquetValues& values,
              int64_t i, bool divides, std::string* scratch, KeyBuffer* keys) {
  if (i >= 0) {
    if (column.kind == Kind::kInteger || column.kind == Kind::kBool ||
        (column.kind == Kind::kUnsigned && values.integers[i] >= 0)) {
      return reader.ReadInteger(values.integers[i], keys);
    }
    if (divides) return reader.Read(values.text(i), keys);
  }
  return reader.ReadValue(TextOf(column, values, i, scratch), keys);
}

bool IsEmpty(const ParquetColumn& column, const ParquetValues& values, int64_t i) {
  if (i < 0 || IsNan(column, values, i)) return true;
  return column.kind == Kind::kText && values.text(i).empty();
}

bool AddNumber(const NumberReader& reader, const ParquetColumn& column, const ParquetValues& values,
               int64_t i, std::string* scratch, float* value) {
  if (i < 0 || IsNan(column, values, i)) return reader.Read("", value);
  switch (column.kind) {
    case Kind::kInteger:
    case Kind::kBool:
      return reader.ReadInteger(values.integers[i], value);
    case Kind::kUnsigned:
      return reader.ReadNumber(static_cast<double>(static_cast<uint64_t>(values.integers[i])),
                               value);
    case Kind::kFloat: {
      // Its decimal text, read as a float64, is another number than the integer itself.
      const double number = values.reals[i];
      const bool is_exact = std::abs(number) <= kMostExactFloat && number == std::trunc(number);
      if (reader.has_transforms() && !is_exact) break;
      return std::isfinite(number) && reader.ReadNumber(number + 0.0, value);
    }
    case Kind::kDouble:  // -0 is 0, as in text.
      return std::isfinite(values.reals[i]) && reader.ReadNumber(values.reals[i] + 0.0, value);
    default:
      break;
  }
  return reader.Read(TextOf(column, values, i, scratch), value);
}

using Kind = ParquetColumn::Kind;

bool IsTime(Kind kind) { return kind == Kind::kDate || kind == Kind::kTimestamp; }

// "2026-11-20", maybe with a time of the day, in UTC, as whole units since 1970: the first that is
// not before it.
absl::StatusOr<int64_t> ParseTime(const std::string& text, int64_t nanos_per_unit) {
  for (const char* format : {"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%E*S", "%Y-%m-%dT%H:%M",
                             "%Y-%m-%dT%H:%M:%E*S", "%Y-%m-%dT%H:%M:%E*S%Ez"}) {
    absl::Time time;
    std::string ignored;
    if (!absl::ParseTime(format, text, absl::UTCTimeZone(), &time, &ignored)) continue;
    const int64_t nanos = absl::ToUnixNanos(time);
    return nanos / nanos_per_unit + (nanos % nanos_per_unit > 0 ? 1 : 0);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("data.split.test_from is '", text,
                   "', but the column is one of dates or times: \"2026-11-20\" or \"2026-11-20 "
                   "12:30:00\", in UTC"));
}

int64_t NanosPerUnit(const ParquetColumn& column) {
  constexpr int64_t kNanosPerSecond = 1000000000;
  return column.kind == Kind::kDate ? 86400 * kNanosPerSecond
                                    : kNanosPerSecond / column.units_per_second;
}

}  // namespace

// It keeps the column of the block that the last row was in.
struct ParquetParser::Cursor {
  Cursor(const ParquetParser& parser, int place) : place(place), column(parser.columns_[place]) {}

  // The row's index among its block's values; for columns without lists.
  int64_t Index(const Row& row) {
    Enter(row);
    return cells->index(row.row);
  }
  void Enter(const Row& row) {
    if (row.block == block) return;
    block = row.block;
    cells = &block->cells[place];
    values = cells->values.get();
  }

  const int place;
  const ParquetColumn& column;
  const ParquetBlock* block = nullptr;
  const ParquetCells* cells = nullptr;
  const ParquetValues* values = nullptr;
};

void ParquetParser::ShareDictionaries(const ParquetBlock* before, ParquetBlock* block) const {
  block->keys.resize(plan_.features_.size());
  for (size_t f = 0; f < plan_.features_.size(); ++f) {
    const TextParser::Keys& keys = plan_.features_[f];
    if (keys.column < 0) continue;
    const int place = places_[keys.column];
    const std::shared_ptr<const ParquetValues>& values = block->cells[place].values;
    if (!values->is_dictionary || Divides(*keys.reader, columns_[place])) continue;
    const bool is_shared = before != nullptr && before->cells[place].values == values;
    block->keys[f] = is_shared ? before->keys[f] : std::make_shared<DictionaryKeys>();
  }
}

bool ParquetParser::Divides(const KeyReader& reader, const ParquetColumn& column) {
  return reader.divides() && column.kind == Kind::kText && !column.is_list;
}

void ParquetParser::Fill(const KeyReader& reader, const ParquetColumn& column,
                         const ParquetValues& values, DictionaryKeys* known) {
  known->keys.resize(values.size);
  known->states.resize(values.size);
  UninitializedVector<Key> one(1);
  std::string scratch;
  for (size_t i = 0; i < values.size; ++i) {
    KeyBuffer keys{&one};
    const bool ok = AddValue(reader, column, values, static_cast<int64_t>(i), /*divides=*/false,
                             &scratch, &keys);
    known->states[i] = !ok              ? DictionaryKeys::State::kMalformed
                       : keys.size == 0 ? DictionaryKeys::State::kNoKey
                                        : DictionaryKeys::State::kKey;
    known->keys[i] = one[0];
  }
}

template <typename F>
void ParquetParser::ForEachText(const std::vector<Row>& rows, int column, const F& f) const {
  std::string scratch;
  Cursor cursor(*this, places_[column]);
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t i = cursor.Index(rows[r]);
    f(r, TextOf(cursor.column, *cursor.values, i, &scratch));
  }
}

void ParquetParser::ReadLabels(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad,
                               Batch* batch) const {
  const size_t tasks = plan_.num_tasks_;
  std::fill(batch->weights.begin(), batch->weights.end(), 1.0f);
  if (plan_.weight_ >= 0) {
    ForEachText(rows, plan_.weight_, [&](size_t r, absl::string_view text) {
      float weight = 0;
      if (!TextParser::ParseWeight(text, &weight)) (*is_bad)[r] = 1;
      std::fill_n(&batch->weights[r * tasks], tasks, weight);
    });
  }
  // They stay so where there is no label.
  std::fill(batch->labels.begin(), batch->labels.end(), plan_.needs_labels_ ? 0.0f : NAN);
  std::vector<uint8_t> has_label(rows.size(), plan_.needs_labels_ ? 0 : 1);
  for (const TextParser::Label& label : plan_.labels_) {
    ForEachText(rows, label.column, [&](size_t r, absl::string_view text) {
      float value = 0;
      const TextParser::LabelState state = plan_.ReadLabel(label, text, &value);
      if (state == TextParser::LabelState::kMalformed && plan_.needs_labels_) (*is_bad)[r] = 1;
      if (state == TextParser::LabelState::kLabel) has_label[r] = 1;
      if (label.task < 0) return;
      const size_t at = r * tasks + label.task;
      if (state == TextParser::LabelState::kLabel) batch->labels[at] = value;
      if (state == TextParser::LabelState::kMissing) batch->weights[at] = 0;
    });
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (has_label[r] == 0) (*is_bad)[r] = 1;
  }
  if (!plan_.split_.has_value() || test_from_.has_value()) return;
  ForEachText(rows, plan_.split_->column(), [&](size_t r, absl::string_view text) {
    if (!plan_.split_->IsHeldOut(text).has_value()) (*is_bad)[r] = 1;
  });
}

void ParquetParser::ReadTexts(const std::vector<Row>& rows, Batch* batch) const {
  batch->groups.resize(plan_.group_ >= 0 ? rows.size() : 0);
  if (plan_.group_ >= 0) {
    ForEachText(rows, plan_.group_,
                [batch](size_t r, absl::string_view text) { batch->groups[r] = HashText(text); });
  }
  batch->carried.resize(plan_.carried_.size());
  for (size_t c = 0; c < plan_.carried_.size(); ++c) {
    std::vector<std::string>& carried = batch->carried[c];
    carried.resize(rows.size());
    ForEachText(rows, plan_.carried_[c],
                [&carried](size_t r, absl::string_view text) { carried[r] = std::string(text); });
  }
}

void ParquetParser::ReadNumbers(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad,
                                Batch* batch) const {
  std::string scratch;
  const int stride = batch->dense_stride;
  for (size_t n = 0; n < plan_.numbers_.size(); ++n) {
    const TextParser::Number& number = plan_.numbers_[n];
    Cursor cursor(*this, places_[number.column]);
    float* out = batch->dense.data() + n;
    for (size_t r = 0; r < rows.size(); ++r, out += stride) {
      const int64_t i = cursor.Index(rows[r]);
      if (!AddNumber(number.reader, cursor.column, *cursor.values, i, &scratch, out)) {
        (*is_bad)[r] = 1;
      }
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    float* const row = batch->dense.data() + r * stride;
    std::fill(row + plan_.numbers_.size(), row + stride, 0.0f);
  }
}

bool ParquetParser::ReadList(const KeyReader& reader, const Cursor& cursor,
                             const DictionaryKeys* known, int64_t row, std::string* scratch,
                             KeyBuffer* keys) {
  const int32_t begin = cursor.cells->offsets[row];
  const int32_t end = cursor.cells->offsets[row + 1];
  if (begin == end) return reader.Read("", keys);
  const size_t first = keys->size;
  for (int32_t cell = begin; cell < end; ++cell) {
    const int64_t i = cursor.cells->index(cell);
    if (end - begin > 1 && IsEmpty(cursor.column, *cursor.values, i)) return false;
    if (!AddCell(reader, cursor, known, i, /*divides=*/false, scratch, keys)) return false;
  }
  reader.Shorten(first, keys);
  return true;
}

bool ParquetParser::AddCell(const KeyReader& reader, const Cursor& cursor,
                            const DictionaryKeys* known, int64_t i, bool divides,
                            std::string* scratch, KeyBuffer* keys) {
  if (known == nullptr || i < 0) {
    return AddValue(reader, cursor.column, *cursor.values, i, divides, scratch, keys);
  }
  if (known->states[i] == DictionaryKeys::State::kKey) keys->Add(known->keys[i]);
  return known->states[i] != DictionaryKeys::State::kMalformed;
}

void ParquetParser::ReadKeys(const std::vector<Row>& rows, size_t f, std::vector<uint8_t>* is_bad,
                             FeatureLookups* lookups, std::vector<size_t>* lengths) const {
  const KeyReader& reader = *plan_.features_[f].reader;
  Cursor cursor(*this, places_[plan_.features_[f].column]);
  const bool divides = Divides(reader, cursor.column);
  const ParquetBlock* block = nullptr;
  DictionaryKeys* known = nullptr;
  std::string scratch;
  KeyBuffer keys{&lookups->keys};
  const bool is_text = cursor.column.kind == Kind::kText && !cursor.column.is_list && !divides;
  for (size_t r = 0; r < rows.size(); ++r) {
    cursor.Enter(rows[r]);
    if (block != cursor.block) {
      block = cursor.block;
      known = block->keys[f].get();
      if (known != nullptr) {
        std::call_once(known->filled, [&] { Fill(reader, cursor.column, *cursor.values, known); });
      }
    }
    keys.BeginRow();
    bool ok;
    if (is_text && known == nullptr) {
      const int64_t i = cursor.cells->index(rows[r].row);
      ok = reader.ReadValue(i < 0 ? absl::string_view() : cursor.values->text(i), &keys);
    } else if (cursor.column.is_list) {
      ok = ReadList(reader, cursor, known, rows[r].row, &scratch, &keys);
    } else {
      const int64_t i = cursor.cells->index(rows[r].row);
      ok = i < 0 ? reader.Read("", &keys)
                 : AddCell(reader, cursor, known, i, divides, &scratch, &keys);
    }
    if (lengths != nullptr) (*lengths)[r] = keys.row_keys();
    if (!ok) {
      (*is_bad)[r] = 1;
      keys.size = keys.row_begin;
    }
    lookups->offsets[r + 1] = static_cast<int32_t>(keys.size);
  }
  lookups->keys.resize(keys.size);
}

bool ParquetParser::ReadWeightedList(const TextParser::Keys& feature, const Cursor& cursor,
                                     const Cursor& numbers, int64_t row, std::string* scratch,
                                     KeyBuffer* keys) {
  const KeyReader& reader = *feature.reader;
  const ListWeights& weights = *feature.list_weights;
  const int32_t first_value = cursor.cells->offsets[row];
  const int32_t first_weight = numbers.cells->offsets[row];
  const int32_t num_values = cursor.cells->offsets[row + 1] - first_value;
  const int32_t num_weights = numbers.cells->offsets[row + 1] - first_weight;
  if (num_values == 0 && num_weights == 0) return weights.Read(reader, "", "", keys);
  if (num_weights != std::max(num_values, 1)) return false;
  const size_t first = keys->size;
  for (int32_t k = 0; k < num_weights; ++k) {
    const int64_t value = num_values == 0 ? -1 : cursor.cells->index(first_value + k);
    if (num_values > 1 && IsEmpty(cursor.column, *cursor.values, value)) return false;
    float weight;
    if (!AddNumber(weights.number(), numbers.column, *numbers.values,
                   numbers.cells->index(first_weight + k), scratch, &weight) ||
        !AddValue(reader, cursor.column, *cursor.values, value, /*divides=*/false, scratch, keys) ||
        !weights.Add(weight, keys)) {
      return false;
    }
  }
  weights.Finish(reader, first, keys);
  return true;
}

void ParquetParser::ReadWeightedKeys(const std::vector<Row>& rows, size_t f,
                                     std::vector<uint8_t>* is_bad, FeatureLookups* lookups) const {
  const TextParser::Keys& feature = plan_.features_[f];
  Cursor cursor(*this, places_[feature.column]);
  Cursor numbers(*this, places_[feature.weights]);
  std::string scratch, number;
  lookups->weights.clear();
  KeyBuffer keys{&lookups->keys, &lookups->weights};
  for (size_t r = 0; r < rows.size(); ++r) {
    cursor.Enter(rows[r]);
    numbers.Enter(rows[r]);
    const int64_t row = rows[r].row;
    const size_t before = keys.size;
    const bool ok =
        cursor.column.is_list
            ? ReadWeightedList(feature, cursor, numbers, row, &scratch, &keys)
            : feature.list_weights->Read(
                  *feature.reader,
                  TextOf(cursor.column, *cursor.values, cursor.cells->index(row), &scratch),
                  TextOf(numbers.column, *numbers.values, numbers.cells->index(row), &number),
                  &keys);
    if (!ok) {
      (*is_bad)[r] = 1;
      keys.size = before;
      lookups->weights.resize(before);
    }
    lookups->offsets[r + 1] = static_cast<int32_t>(keys.size);
  }
  lookups->keys.resize(keys.size);
}

void ParquetParser::AddCrosses(const std::vector<uint8_t>& is_bad, Batch* batch) const {
  std::vector<Key> values;
  for (size_t f = 0; f < plan_.features_.size(); ++f) {
    if (plan_.features_[f].column >= 0) continue;
    FeatureLookups& lookups = batch->features[f];
    lookups.keys.resize(is_bad.size());
    for (size_t r = 0; r < is_bad.size(); ++r) {
      values.clear();
      for (const int of : plan_.features_[f].cross) {
        const FeatureLookups& component = batch->features[of];
        if (is_bad[r] == 0) values.push_back(component.keys[component.offsets[r + 1] - 1]);
      }
      lookups.keys[r] = CrossKeys(values, plan_.features_[f].buckets);
      lookups.offsets[r + 1] = static_cast<int32_t>(r + 1);
    }
  }
}

void ParquetParser::ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                              std::vector<int64_t>* bad) const {
  std::vector<Row> rows(raw.column_rows.begin() + begin, raw.column_rows.begin() + end);
  std::vector<uint8_t> is_bad;
  ReadRows(rows, &is_bad, batch);
  if (std::find(is_bad.begin(), is_bad.end(), 1) == is_bad.end()) return;
  std::vector<Row> good;
  for (size_t r = 0; r < rows.size(); ++r) {
    is_bad[r] != 0 ? bad->push_back(begin + static_cast<int64_t>(r)) : good.push_back(rows[r]);
  }
  ReadRows(good, &is_bad, batch);
}

void ParquetParser::ReadRows(const std::vector<Row>& rows, std::vector<uint8_t>* is_bad,
                             Batch* batch) const {
  is_bad->assign(rows.size(), 0);
  batch->size = static_cast<int>(rows.size());
  batch->num_dense = static_cast<int>(plan_.numbers_.size());
  batch->dense_stride = PaddedDenseColumns(batch->num_dense);
  batch->dense.resize(rows.size() * batch->dense_stride);
  batch->num_tasks = plan_.num_tasks_;
  batch->labels.resize(rows.size() * plan_.num_tasks_);
  batch->weights.resize(plan_.has_weights() ? rows.size() * plan_.num_tasks_ : 0);
  batch->features.resize(plan_.features_.size());
  ReadLabels(rows, is_bad, batch);
  ReadTexts(rows, batch);
  ReadNumbers(rows, is_bad, batch);
  std::vector<std::vector<size_t>> lengths(plan_.features_.size());
  for (size_t f = 0; f < plan_.features_.size(); ++f) {
    FeatureLookups& lookups = batch->features[f];
    lookups.keys.resize(std::max(lookups.keys.capacity(), rows.size()));
    lookups.offsets.resize(rows.size() + 1);
    lookups.offsets[0] = 0;
    if (plan_.features_[f].weights >= 0) {
      ReadWeightedKeys(rows, f, is_bad, &lookups);
    } else if (plan_.features_[f].column >= 0) {
      const bool is_step_list = plan_.step_lists_.Has(f);
      if (is_step_list) lengths[f].resize(rows.size());
      ReadKeys(rows, f, is_bad, &lookups, is_step_list ? &lengths[f] : nullptr);
    }
  }
  for (size_t r = 0; r < rows.size() && !plan_.step_lists_.empty(); ++r) {
    const auto length_of = [&](int f) { return lengths[f][r]; };
    if (plan_.step_lists_.FindMismatch(length_of).first >= 0) (*is_bad)[r] = 1;
  }
  AddCrosses(*is_bad, batch);
}

bool ParquetParser::IsHeldOut(const ParquetCells& cells, int64_t row) const {
  const int place = split_place();
  const int64_t i = cells.index(row);
  if (test_from_.has_value()) return i >= 0 && cells.values->integers[i] >= *test_from_;
  std::string scratch;
  return plan_.split_->IsHeldOut(TextOf(columns_[place], *cells.values, i, &scratch))
      .value_or(false);
}

// ---- what is wrong

size_t ParquetParser::CountValues(int feature, const ParquetBlock& block, int64_t row) const {
  const TextParser::Keys& keys = plan_.features_[feature];
  const ParquetCells& cells = block.cells[places_[keys.column]];
  const ParquetColumn& column = Column(keys.column);
  if (column.is_list) return cells.offsets[row + 1] - cells.offsets[row];
  std::string scratch;
  return keys.reader->CountValues(TextOf(column, *cells.values, cells.index(row), &scratch));
}

std::string ParquetParser::DescribeList(int column, const ParquetCells& cells, int64_t row) const {
  std::string scratch;
  for (const TextParser::Keys& keys : plan_.features_) {
    if (keys.column != column) continue;
    const int32_t begin = cells.offsets[row], end = cells.offsets[row + 1];
    if (begin == end) return keys.reader->Describe("");
    for (int32_t cell = begin; cell < end; ++cell) {
      const absl::string_view text =
          TextOf(Column(column), *cells.values, cells.index(cell), &scratch);
      if (text.empty() && end - begin > 1) return "an empty value among several";
      const std::string wrong = keys.reader->DescribeValue(text);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string ParquetParser::DescribeWeights(const TextParser::Keys& feature,
                                           const ParquetBlock& block, int64_t row) const {
  const ParquetColumn& column = Column(feature.column);
  const ParquetColumn& weights = Column(feature.weights);
  const ParquetCells& cells = block.cells[places_[feature.column]];
  const ParquetCells& numbers = block.cells[places_[feature.weights]];
  std::string scratch, number;
  if (!column.is_list) {
    return feature.list_weights->Describe(
        *feature.reader, column.name, TextOf(column, *cells.values, cells.index(row), &scratch),
        TextOf(weights, *numbers.values, numbers.index(row), &number));
  }
  const int32_t num_values = cells.offsets[row + 1] - cells.offsets[row];
  const int32_t num_weights = numbers.offsets[row + 1] - numbers.offsets[row];
  if (num_weights != num_values && (num_weights != 1 || num_values != 0)) {
    return ListWeights::DescribeCounts(num_weights, column.name, num_values);
  }
  std::string wrong;
  for (int32_t k = numbers.offsets[row]; wrong.empty() && k < numbers.offsets[row + 1]; ++k) {
    wrong = feature.list_weights->DescribeWeight(
        TextOf(weights, *numbers.values, numbers.index(k), &number));
  }
  return wrong;
}

std::string ParquetParser::Describe(const ParquetBlock& block, int64_t row) const {
  std::string scratch;
  for (int column = 0; column < static_cast<int>(places_.size()); ++column) {
    if (places_[column] < 0) continue;
    const ParquetCells& cells = block.cells[places_[column]];
    std::string wrong = Column(column).is_list
                            ? DescribeList(column, cells, row)
                            : plan_.DescribeColumn(column, TextOf(Column(column), *cells.values,
                                                                  cells.index(row), &scratch));
    for (const TextParser::Keys& keys : plan_.features_) {
      if (wrong.empty() && keys.weights == column) wrong = DescribeWeights(keys, block, row);
    }
    if (!wrong.empty()) return absl::StrCat("column '", Column(column).name, "': ", wrong);
  }
  const std::string no_label = plan_.DescribeLabels([&](int column) {
    const ParquetCells& cells = block.cells[places_[column]];
    return TextOf(Column(column), *cells.values, cells.index(row), &scratch);
  });
  if (!no_label.empty()) return no_label;
  const auto length_of = [&](int f) { return CountValues(f, block, row); };
  const StepLists::Mismatch mismatch = plan_.step_lists_.FindMismatch(length_of);
  if (mismatch.first < 0) return "the row is malformed";
  const auto name_of = [&](int f) {
    return absl::StrCat("column '", Column(plan_.features_[f].column).name, "'");
  };
  return StepLists::Describe(mismatch, name_of(mismatch.first), length_of(mismatch.first),
                             name_of(mismatch.second), length_of(mismatch.second));
}

// The columns that a parser reads
// ------------------------------------------------------------------------------------------------

absl::StatusOr<ParquetParser> ParquetParser::Make(const Job& job, const Data& data,
                                                  const std::string& path,
                                                  const std::vector<ParquetColumn>& columns,
                                                  const TextParserOptions& options) {
  ColumnNames names{{}, path};
  for (const ParquetColumn& column : columns) names.names.push_back(column.name);
  ASSIGN_OR_RETURN(TextParser plan, TextParser::Make(job, data, std::move(names), options));
  ParquetParser parser(std::move(plan));
  parser.AddColumns(columns);
  RETURN_IF_ERROR(parser.CheckColumns(job, path));
  if (parser.plan_.split_.has_value()) {
    const ParquetColumn& column = parser.Column(parser.plan_.split_->column());
    if (IsTime(column.kind)) {
      ASSIGN_OR_RETURN(parser.test_from_,
                       ParseTime(data.split().test_from(), NanosPerUnit(column)));
    }
  }
  return parser;
}

void ParquetParser::AddColumns(const std::vector<ParquetColumn>& columns) {
  std::vector<int> used;
  for (const TextParser::Label& label : plan_.labels_) used.push_back(label.column);
  for (const TextParser::Number& number : plan_.numbers_) used.push_back(number.column);
  for (const TextParser::Keys& keys : plan_.features_) {
    if (keys.column >= 0) used.push_back(keys.column);
    if (keys.weights >= 0) used.push_back(keys.weights);
  }
  used.insert(used.end(), plan_.carried_.begin(), plan_.carried_.end());
  if (plan_.weight_ >= 0) used.push_back(plan_.weight_);
  if (plan_.group_ >= 0) used.push_back(plan_.group_);
  if (plan_.split_.has_value()) used.push_back(plan_.split_->column());
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  places_.assign(columns.size(), -1);
  for (const int column : used) {
    places_[column] = static_cast<int>(columns_.size());
    columns_.push_back(columns[column]);
  }
}

absl::Status ParquetParser::CheckColumns(const Job& job, const std::string& path) const {
  for (const ParquetColumn& column : columns_) {
    if (column.kind != Kind::kUnsupported) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the column '", column.name, "' is of type ", column.type,
                     ", which can't be read; cast it to a number, a string or a timestamp"));
  }
  const auto wrong = [&](absl::string_view use, const ParquetColumn& column) {
    return absl::InvalidArgumentError(absl::StrCat(use, ", but the column '", column.name, "' of ",
                                                   path, " is of type ", column.type));
  };
  for (const TextParser::Label& label : plan_.labels_) {
    const ParquetColumn& column = Column(label.column);
    if (column.is_list) return wrong("data.label.column is one value a row", column);
  }
  if (plan_.group_ >= 0 && Column(plan_.group_).is_list) {
    return wrong("data.group is one value a row", Column(plan_.group_));
  }
  for (const int carried : plan_.carried_) {
    if (Column(carried).is_list) return wrong("--column is one value a row", Column(carried));
  }
  if (plan_.weight_ >= 0 && (Column(plan_.weight_).is_list || IsTime(Column(plan_.weight_).kind))) {
    return wrong("data.weight is one number a row", Column(plan_.weight_));
  }
  if (plan_.split_.has_value() && Column(plan_.split_->column()).is_list) {
    return wrong("data.split.column is one value a row", Column(plan_.split_->column()));
  }
  const std::vector<const Feature*> numeric = NumericFeatures(job);
  for (size_t i = 0; i < numeric.size(); ++i) {
    const ParquetColumn& column = Column(plan_.numbers_[i].column);
    if (!column.is_list && !IsTime(column.kind)) continue;
    return wrong(absl::StrCat("feature '", numeric[i]->name(), "' is numeric"), column);
  }
  const std::vector<const Feature*> embedded = EmbeddedFeatures(job);
  for (size_t i = 0; i < embedded.size(); ++i) {
    for (const int of : plan_.features_[i].cross) {
      const ParquetColumn& column = Column(plan_.features_[of].column);
      if (!column.is_list) continue;
      return wrong(absl::StrCat("feature '", embedded[i]->name(), "' crosses single values"),
                   column);
    }
    if (plan_.features_[i].column < 0) continue;
    const ParquetColumn& column = Column(plan_.features_[i].column);
    const Feature::Categorical& categorical = embedded[i]->categorical();
    if (plan_.features_[i].weights >= 0) {
      const ParquetColumn& weights = Column(plan_.features_[i].weights);
      if (weights.is_list != column.is_list || IsTime(weights.kind)) {
        return wrong(absl::StrCat("the weights of feature '", embedded[i]->name(), "' are ",
                                  column.is_list ? "a list of numbers" : "numbers",
                                  ", as its column is ", column.is_list ? "a list" : "no list"),
                     weights);
      }
    }
    // Lists of floats are vectors: a hash of their numbers' texts would mean nothing.
    if (column.is_list && column.kind == Kind::kFloat && categorical.boundaries().empty() &&
        categorical.id() == Feature::Categorical::STRING) {
      return wrong(absl::StrCat("feature '", embedded[i]->name(),
                                "' is made of ids or texts (give each number of a list a column "
                                "of its own, as a numeric feature)"),
                   column);
    }
    const bool is_number =
        categorical.boundaries_size() > 0 || categorical.id() == Feature::Categorical::INTEGER;
    if (is_number && IsTime(column.kind)) {
      return wrong(absl::StrCat("feature '", embedded[i]->name(), "' is made of numbers"), column);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ParquetParser::Find(
    const std::string& path, const std::vector<ParquetColumn>& columns) const {
  std::vector<int> found;
  for (const ParquetColumn& wanted : columns_) {
    const auto at = std::find_if(columns.begin(), columns.end(), [&](const ParquetColumn& column) {
      return column.name == wanted.name;
    });
    if (at == columns.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": has no column '", wanted.name,
                                                     "', as ", plan_.columns_.source, " has"));
    }
    if (at->type != wanted.type) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the column '", wanted.name, "' is of type ", at->type, ", not ",
                       wanted.type, " as in ", plan_.columns_.source));
    }
    found.push_back(static_cast<int>(at - columns.begin()));
  }
  return found;
}

}  // namespace thermocline
