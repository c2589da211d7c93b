#include "worker/data/text/text_parser.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "worker/data/text/list_separator.h"
#include "worker/data/text/number_text.h"

namespace thermocline {
namespace {

// So many bytes are compared at a time.
constexpr size_t kSplitBytes = 64;

// Returns a bit for each of the kSplitBytes at `p`: whether it is `wanted`.
inline uint64_t MatchesAt(const char* p, __m256i wanted) {
  const auto half = [wanted](const char* from) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, wanted)));
  };
  return half(p) | uint64_t{half(p + 32)} << 32;
}

// Finds the separators of a line, and counts them. Their number in a block is hard to predict, so a
// dozen places are written whether or not there are so many.
//   ends: has room for all of them and kSplitBytes more
size_t FindSeparators(absl::string_view line, char separator, uint32_t* ends) {
  constexpr int kAtOnce = 12;
  const __m256i wanted = _mm256_set1_epi8(separator);
  size_t count = 0;
  const auto add = [&](size_t offset, uint64_t matches) {
    const auto found = static_cast<size_t>(__builtin_popcountll(matches));
    for (size_t written = 0; written == 0 || written < found; written += kAtOnce) {
      for (int i = 0; i < kAtOnce; ++i, matches &= matches - 1) {
        ends[count + written + i] = static_cast<uint32_t>(offset + _tzcnt_u64(matches));
      }
    }
    count += found;
  };
  size_t offset = 0;
  for (; offset + kSplitBytes <= line.size(); offset += kSplitBytes) {
    add(offset, MatchesAt(line.data() + offset, wanted));
  }
  if (offset == line.size()) return count;
  char rest[kSplitBytes] = {};
  std::memcpy(rest, line.data() + offset, line.size() - offset);
  add(offset, MatchesAt(rest, wanted) & ((uint64_t{1} << (line.size() - offset)) - 1));
  return count;
}

// The columns of a line without quotes, by the places of their separators and the line's end. The
// first column begins after places[0], which is -1.
struct PlainColumns {
  const char* line;
  const uint32_t* places;
  size_t count;

  size_t size() const { return count; }
  absl::string_view operator[](size_t i) const {
    const uint32_t begin = places[i] + 1;
    return {line + begin, places[i + 1] - begin};
  }
};

// The columns point into `ends`.
PlainColumns SplitPlain(absl::string_view line, char separator,
                        UninitializedVector<uint32_t>* ends) {
  if (ends->size() < line.size() + 2 * kSplitBytes) {
    ends->resize(2 * line.size() + 2 * kSplitBytes);
  }
  (*ends)[0] = ~uint32_t{0};
  const size_t separators = FindSeparators(line, separator, ends->data() + 1);
  (*ends)[separators + 1] = static_cast<uint32_t>(line.size());
  return {line.data(), ends->data(), separators + 1};
}

// The columns of a line, then the keys of its file's folders.
template <typename Columns>
struct ColumnsAndKeys {
  const Columns& columns;
  absl::Span<const std::string> keys;

  size_t size() const { return columns.size() + keys.size(); }
  absl::string_view operator[](size_t i) const {
    return i < columns.size() ? columns[i] : keys[i - columns.size()];
  }
};

inline bool MayHaveQuotes(absl::string_view line, const LineFormat& format) {
  return format.quotes && std::memchr(line.data(), '"', line.size()) != nullptr;
}

// Takes a column that begins with a quote from the front of `*rest`. Returns false if there is no
// closing quote, or if other text follows it. `unquoted` has room for all of the line.
bool TakeQuoted(absl::string_view* rest, char separator, absl::string_view* column,
                std::string* unquoted) {
  rest->remove_prefix(1);
  const size_t start = unquoted->size();
  bool is_copied = false;
  size_t from = 0;
  for (;;) {
    const size_t quote = rest->find('"', from);
    if (quote == rest->npos) return false;
    if (quote + 1 < rest->size() && (*rest)[quote + 1] == '"') {
      unquoted->append(rest->data() + from, quote + 1 - from);
      is_copied = true;
      from = quote + 2;
      continue;
    }
    if (is_copied) {
      unquoted->append(rest->data() + from, quote - from);
      *column = absl::string_view(*unquoted).substr(start);
    } else {
      *column = rest->substr(0, quote);
    }
    rest->remove_prefix(quote + 1);
    return rest->empty() || rest->front() == separator;
  }
}

std::string CountOfColumns(size_t count) {
  return absl::StrCat(count, count == 1 ? " column" : " columns");
}

// Whether a line has commas but no tab.
std::string DescribeCommas(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, ',');
  const bool has_header = LooksLikeHeader(columns);
  return absl::StrCat(
      columns.size(), " columns separated by commas; CRITEO_TSV separates them by tabs",
      has_header
          ? absl::StrCat(", and has no header, which the line looks like (", QuoteText(line), ")")
          : "",
      "; describe the file with data.train { csv {} } and `feature`");
}

}  // namespace

absl::string_view WithoutLineEnd(absl::string_view line) {
  if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool LooksLikeHeader(absl::Span<const absl::string_view> columns) {
  return columns.size() > 1 &&
         std::all_of(columns.begin(), columns.end(), [](absl::string_view column) {
           column = absl::StripPrefix(column, "\"");
           return !column.empty() && (absl::ascii_isalpha(column[0]) || column[0] == '_');
         });
}

void SplitLine(absl::string_view line, const LineFormat& format, LineColumns* out) {
  out->misquoted = -1;
  out->storage.clear();
  if (!MayHaveQuotes(line, format)) {
    const PlainColumns columns = SplitPlain(line, format.separator, &out->ends);
    for (size_t i = 0; i < columns.size(); ++i) out->storage.push_back(columns[i]);
    out->columns = out->storage;
    return;
  }
  out->unquoted.clear();
  out->unquoted.reserve(line.size());  // Columns point into it.
  for (absl::string_view rest = line;;) {
    absl::string_view column;
    if (!rest.empty() && rest.front() == '"') {
      const auto at = static_cast<size_t>(rest.data() - line.data());
      if (!TakeQuoted(&rest, format.separator, &column, &out->unquoted)) {
        out->misquoted_at = at;
        out->misquoted = static_cast<int>(out->storage.size());
        break;
      }
    } else {
      column = rest.substr(0, rest.find(format.separator));
      rest.remove_prefix(column.size());
    }
    out->storage.push_back(column);
    if (rest.empty()) break;
    rest.remove_prefix(1);
  }
  out->columns = out->storage;
}

// ---- what the job says

absl::StatusOr<int> TextParser::Find(absl::string_view column, absl::string_view named_by) const {
  const auto found = std::find(columns_.names.begin(), columns_.names.end(), column);
  if (found != columns_.names.end()) return static_cast<int>(found - columns_.names.begin());
  return absl::InvalidArgumentError(absl::StrCat(named_by, " names the column '", column, "', but ",
                                                 columns_.source, " has no such column",
                                                 DidYouMean(column, columns_.names)));
}

absl::Status TextParser::AddFeatures(const Job& job) {
  const MissingNumbers missing(job.data());
  step_lists_ = StepLists(job);
  std::map<absl::string_view, int> index;
  for (const Feature* feature : EmbeddedFeatures(job)) {
    Keys keys;
    if (!feature->has_cross()) {
      ASSIGN_OR_RETURN(keys.column,
                       Find(feature->column(0), absl::StrCat("feature '", feature->name(), "'")));
      keys.reader.emplace(*feature, missing, step_lists_.Has(features_.size()));
    }
    const std::string& weights = feature->categorical().weights();
    keys.is_plain = !feature->has_cross() && weights.empty();
    if (!weights.empty()) {
      ASSIGN_OR_RETURN(keys.weights, Find(weights, absl::StrCat("categorical.weights of feature '",
                                                                feature->name(), "'")));
      keys.list_weights.emplace(*feature);
    }
    index[feature->name()] = static_cast<int>(features_.size());
    features_.push_back(std::move(keys));
  }
  for (const Feature* feature : EmbeddedFeatures(job)) {
    Keys& keys = features_[index[feature->name()]];
    keys.buckets = feature->cross().buckets();
    for (const std::string& name : feature->cross().of()) {
      const auto of = index.find(name);
      if (of == index.end() || features_[of->second].column < 0) {
        return absl::InvalidArgumentError(absl::StrCat("feature '", feature->name(), "' crosses '",
                                                       name,
                                                       "', which is none "
                                                       "with a column"));
      }
      keys.cross.push_back(of->second);
    }
  }
  for (const Feature* feature : NumericFeatures(job)) {
    ASSIGN_OR_RETURN(const int column,
                     Find(feature->column(0), absl::StrCat("feature '", feature->name(), "'")));
    numbers_.push_back({column, NumberReader(feature->numeric(), missing)});
  }
  return absl::OkStatus();
}

absl::StatusOr<TextParser> TextParser::Make(const Job& job, const Data& data, ColumnNames columns,
                                            const TextParserOptions& options) {
  TextParser parser;
  parser.needs_labels_ = options.needs_labels;
  parser.is_criteo_ = data.train().has_criteo_tsv();
  if (data.train().has_csv()) {
    parser.format_.separator = data.train().csv().separator().at(0);
    parser.format_.quotes = data.train().csv().quotes();
  }
  parser.columns_ = std::move(columns);
  if (parser.columns_.has_header) {
    const std::vector<std::string>& names = parser.columns_.names;
    const std::string separator(1, parser.format_.separator);
    const auto end = names.end() - static_cast<std::ptrdiff_t>(parser.columns_.num_keys);
    parser.header_ = absl::StrJoin(names.begin(), end, separator);
    parser.quoted_header_ =
        absl::StrCat("\"", absl::StrJoin(names.begin(), end, "\"" + separator + "\""), "\"");
  }
  const std::vector<std::string> learned = LearnedLabels(job);
  parser.num_tasks_ = static_cast<int>(learned.size());
  parser.labels_may_be_missing_ = data.label().may_be_missing();
  parser.missing_ = MissingNumbers(data);
  for (const std::string& name : LabelColumns(job)) {
    const absl::StatusOr<int> column = parser.Find(name, "data.label.column");
    if (!column.ok() && !options.needs_labels) continue;
    RETURN_IF_ERROR(column.status());
    const auto task = std::find(learned.begin(), learned.end(), name);
    parser.labels_.push_back(
        {*column, task == learned.end() ? -1 : static_cast<int>(task - learned.begin())});
  }
  for (const std::string& column : options.carried_columns) {
    ASSIGN_OR_RETURN(parser.carried_.emplace_back(), parser.Find(column, "--column"));
  }
  parser.positive_.assign(data.label().positive().begin(), data.label().positive().end());
  if (!data.weight().empty()) {
    ASSIGN_OR_RETURN(parser.weight_, parser.Find(data.weight(), "data.weight"));
  }
  if (!data.group().empty()) {
    ASSIGN_OR_RETURN(parser.group_, parser.Find(data.group(), "data.group"));
  }
  if (!data.split().column().empty()) {
    ASSIGN_OR_RETURN(const int column, parser.Find(data.split().column(), "data.split.column"));
    parser.split_.emplace(column, data.split().test_from());
  }
  RETURN_IF_ERROR(parser.AddFeatures(job));
  return parser;
}

// ---- rows

bool TextParser::ParseWeight(absl::string_view text, float* weight) {
  const std::optional<double> number = ParseNumber(text);
  if (!number.has_value()) return false;
  *weight = static_cast<float>(*number);
  return *weight >= 0 && std::isfinite(*weight);
}

bool TextParser::has_label() const {
  return std::any_of(labels_.begin(), labels_.end(),
                     [](const Label& label) { return label.task >= 0; });
}

bool TextParser::IsMissing(absl::string_view text) const {
  const std::optional<double> number = ParseNumber(text);
  return text.empty() ||
         (number.has_value() ? missing_.HasNumber(*number) : missing_.HasText(text));
}

TextParser::LabelState TextParser::ReadLabel(const Label& label, absl::string_view text,
                                             float* value) const {
  const bool has_texts = label.task >= 0 && !positive_.empty();
  if (has_texts && std::find(positive_.begin(), positive_.end(), text) != positive_.end()) {
    *value = 1;
    return LabelState::kLabel;
  }
  if (!has_texts && text.size() == 1 && (text[0] == '0' || text[0] == '1')) {
    *value = static_cast<float>(text[0] - '0');
    return LabelState::kLabel;
  }
  if (labels_may_be_missing_ && IsMissing(text)) return LabelState::kMissing;
  *value = 0;
  return has_texts ? LabelState::kLabel : LabelState::kMalformed;
}

template <typename Columns>
bool TextParser::ParseLabels(const Columns& columns, const RowValues& values) const {
  float weight = 1;
  if (weight_ >= 0 && !ParseWeight(columns[weight_], &weight)) return false;
  if (values.weights != nullptr) std::fill_n(values.weights, num_tasks_, weight);
  // They stay so where there is no label.
  std::fill_n(values.labels, num_tasks_, needs_labels_ ? 0.0f : NAN);
  bool has_label = !needs_labels_;
  for (const Label& label : labels_) {
    float value = 0;
    const LabelState state = ReadLabel(label, columns[label.column], &value);
    if (state == LabelState::kMalformed && needs_labels_) return false;
    has_label |= state == LabelState::kLabel;
    if (label.task < 0) continue;
    if (state == LabelState::kLabel) values.labels[label.task] = value;
    if (state == LabelState::kMissing) values.weights[label.task] = 0;
  }
  return has_label;
}

template <typename Columns>
bool TextParser::ParseRow(const Columns& columns, RowValues values,
                          std::vector<KeyBuffer>* features) const {
  if (columns.size() != columns_.names.size()) return false;
  if (!ParseLabels(columns, values)) return false;
  for (const Number& number : numbers_) {
    if (!number.reader.Read(columns[number.column], values.dense++)) return false;
  }
  if (!step_lists_.empty()) {
    for (KeyBuffer& buffer : *features) buffer.BeginRow();
  }
  bool has_others = false;  // Whether there are weights or crosses.
  for (size_t f = 0; f < features_.size(); ++f) {
    const Keys& keys = features_[f];
    has_others |= !keys.is_plain;
    if (!keys.is_plain) continue;
    if (!keys.reader->Read(columns[keys.column], &(*features)[f])) return false;
  }
  if (split_.has_value() && !split_->IsHeldOut(columns[split_->column()])) return false;
  const auto length_of = [features](int f) { return (*features)[f].row_keys(); };
  if (!step_lists_.empty() && step_lists_.FindMismatch(length_of).first >= 0) return false;
  return !has_others || ParseOthers(columns, features);
}

template <typename Columns>
bool TextParser::ParseOthers(const Columns& columns, std::vector<KeyBuffer>* features) const {
  for (size_t f = 0; f < features_.size(); ++f) {
    const Keys& keys = features_[f];
    if (keys.weights < 0) continue;
    if (!keys.list_weights->Read(*keys.reader, columns[keys.column], columns[keys.weights],
                                 &(*features)[f])) {
      return false;
    }
  }
  std::vector<Key> keys;
  for (size_t f = 0; f < features_.size(); ++f) {
    if (features_[f].column >= 0) continue;
    keys.clear();
    for (const int of : features_[f].cross) {
      const KeyBuffer& component = (*features)[of];
      keys.push_back(component.data[component.size - 1]);
    }
    (*features)[f].Add(CrossKeys(keys, features_[f].buckets));
  }
  return true;
}

bool TextParser::IsHeader(absl::string_view line) const {
  if (header_.empty()) return false;
  line = WithoutLineEnd(line);
  absl::ConsumePrefix(&line, kByteOrderMark);  // Each file that was joined may begin with one.
  return line == header_ || line == quoted_header_;
}

bool TextParser::ParseLine(absl::string_view line, absl::Span<const std::string> keys,
                           RowValues values, std::vector<KeyBuffer>* features, LineColumns* scratch,
                           Batch* batch) const {
  if (IsHeader(line)) return false;
  const auto parse_all = [&](const auto& columns) {
    if (!ParseRow(columns, values, features)) return false;
    if (group_ >= 0) batch->groups.push_back(HashText(columns[group_]));
    for (size_t c = 0; c < carried_.size(); ++c) {
      batch->carried[c].emplace_back(columns[carried_[c]]);
    }
    return true;
  };
  const auto parse = [&](const auto& columns) {
    if (keys.empty()) return parse_all(columns);
    return parse_all(ColumnsAndKeys<std::decay_t<decltype(columns)>>{columns, keys});
  };
  if (!MayHaveQuotes(line, format_)) {
    return parse(SplitPlain(line, format_.separator, &scratch->ends));
  }
  SplitLine(line, format_, scratch);
  return scratch->misquoted < 0 && parse(scratch->columns);
}

void TextParser::ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                           std::vector<int64_t>* bad,
                           absl::Span<const std::vector<std::string>> keys) const {
  const size_t rows = end - begin;
  const int num_dense = static_cast<int>(numbers_.size());
  const int stride = PaddedDenseColumns(num_dense);
  batch->num_dense = num_dense;
  batch->dense_stride = stride;
  batch->dense.resize(rows * stride);
  batch->num_tasks = num_tasks_;
  batch->labels.resize(rows * num_tasks_);
  batch->weights.resize(has_weights() ? rows * num_tasks_ : 0);
  batch->groups.clear();
  batch->carried.assign(carried_.size(), {});
  batch->features.resize(features_.size());
  std::vector<KeyBuffer> features;
  features.reserve(features_.size());
  std::vector<int32_t*> offsets;  // [features]
  for (FeatureLookups& feature : batch->features) {
    feature.keys.resize(std::max(feature.keys.capacity(), rows));
    feature.offsets.resize(rows + 1);
    feature.offsets[0] = 0;
    feature.weights.clear();
    features.emplace_back(&feature.keys, &feature.weights);
    offsets.push_back(feature.offsets.data());
  }
  LineColumns line;
  size_t row = 0;
  for (int64_t i = begin; i < end; ++i) {
    float* const dense = batch->dense.data() + row * stride;
    const RowValues values = {dense, &batch->labels[row * num_tasks_],
                              has_weights() ? &batch->weights[row * num_tasks_] : nullptr};
    absl::Span<const std::string> of_file;
    if (!keys.empty()) of_file = keys[raw.OriginOf(i).file];
    if (!ParseLine(WithoutLineEnd(raw.TextOf(i)), of_file, values, &features, &line, batch)) {
      bad->push_back(i);
      for (size_t f = 0; f < features.size(); ++f) {
        features[f].size = offsets[f][row];
        if (features_[f].weights >= 0) batch->features[f].weights.resize(features[f].size);
      }
      continue;
    }
    std::fill(dense + num_dense, dense + stride, 0.0f);
    ++row;
    for (size_t f = 0; f < features.size(); ++f) {
      offsets[f][row] = static_cast<int32_t>(features[f].size);
    }
  }
  batch->size = static_cast<int>(row);
  batch->dense.resize(row * stride);
  batch->labels.resize(row * num_tasks_);
  if (has_weights()) batch->weights.resize(row * num_tasks_);
  for (size_t f = 0; f < features.size(); ++f) {
    batch->features[f].keys.resize(features[f].size);
    batch->features[f].offsets.resize(row + 1);
  }
}

bool TextParser::IsHeldOut(absl::string_view line, absl::Span<const std::string> keys,
                           LineColumns* scratch) const {
  if (!split_.has_value()) return false;
  SplitLine(WithoutLineEnd(line), format_, scratch);
  const ColumnsAndKeys<absl::Span<const absl::string_view>> columns{scratch->columns, keys};
  if (scratch->misquoted >= 0 || columns.size() != columns_.names.size()) return false;
  return split_->IsHeldOut(columns[split_->column()]).value_or(false);
}

// Messages for malformed lines
// ------------------------------------------------------------------------------------------------

std::string TextParser::DescribeCount(absl::string_view line, size_t columns) const {
  const size_t wanted = columns_.names.size() - columns_.num_keys;
  std::string text =
      absl::StrCat(CountOfColumns(columns), ", not ", wanted, " (", columns_.source, ")");
  if (columns > 1) return text;
  for (const char other : {',', '\t', ';', '|'}) {
    const auto others = static_cast<size_t>(std::count(line.begin(), line.end(), other));
    if (others + 1 != wanted || other == format_.separator) continue;
    absl::StrAppend(&text, "; with separator: ",
                    other == '\t' ? "\"\\t\"" : absl::StrCat("\"", std::string(1, other), "\""),
                    " they would be ", wanted);
  }
  return text;
}

std::string TextParser::DescribeColumn(int column, absl::string_view text) const {
  float ignored;
  for (const Label& label : labels_) {
    if (!needs_labels_ || label.column != column) continue;
    const LabelState state = ReadLabel(label, text, &ignored);
    if (state != LabelState::kMalformed) continue;
    const bool may_lack = labels_.size() > 1 && !labels_may_be_missing_ && IsMissing(text);
    return absl::StrCat(QuoteText(text), " is not 0 or 1",
                        may_lack ? " (data.label.may_be_missing lets rows lack some labels)" : "");
  }
  if (column == weight_ && !ParseWeight(text, &ignored)) {
    return absl::StrCat(QuoteText(text), " is not a weight: a number, 0 or more");
  }
  std::string wrong;
  for (const Number& number : numbers_) {
    if (wrong.empty() && number.column == column) wrong = number.reader.Describe(text);
  }
  for (const Keys& keys : features_) {
    if (wrong.empty() && keys.column == column) wrong = keys.reader->Describe(text);
  }
  const bool is_split = split_.has_value() && split_->column() == column;
  if (wrong.empty() && is_split && !split_->IsHeldOut(text).has_value()) {
    wrong = absl::StrCat(QuoteText(text), " is not a number, as data.split.test_from is");
  }
  return wrong;
}

std::string TextParser::Describe(absl::string_view line, absl::Span<const std::string> keys) const {
  line = WithoutLineEnd(line);
  if (line.empty()) return "the line is empty";
  LineColumns split;
  SplitLine(line, format_, &split);
  const absl::Span<const absl::string_view> columns = split.columns;
  if (split.misquoted >= 0) {
    const auto lines = std::count(line.begin(), line.begin() + split.misquoted_at, '\n');
    return absl::StrCat("column ", split.misquoted + 1, " begins with a quote",
                        lines == 0 ? "" : absl::StrCat(", ", lines, " lines further on,"),
                        " that is not closed at its end (a quote within quotes is written twice; "
                        "quotes: false reads it as it is)");
  }
  if (is_criteo_ && columns.size() == 1 && line.find(',') != line.npos) return DescribeCommas(line);
  if (is_criteo_ && LooksLikeHeader(columns)) {
    return absl::StrCat("the line looks like a header (", QuoteText(line),
                        "), which CRITEO_TSV doesn't have; leave it out: tail -n +2, or describe "
                        "the file with data.train { csv {} } and `feature`");
  }
  if (columns.size() + keys.size() != columns_.names.size()) {
    return DescribeCount(line, columns.size());
  }
  std::vector<absl::string_view> all(columns.begin(), columns.end());
  all.insert(all.end(), keys.begin(), keys.end());
  return DescribeColumns(all);
}

std::string TextParser::DescribeLabels(
    absl::FunctionRef<absl::string_view(int column)> text_of) const {
  float ignored;
  std::vector<std::string> names;
  for (const Label& label : labels_) {
    const bool is_missing =
        ReadLabel(label, text_of(label.column), &ignored) == LabelState::kMissing;
    if (!needs_labels_ || !is_missing) return "";
    names.push_back(columns_.names[label.column]);
  }
  return names.empty() ? "" : absl::StrCat("no label is there (", absl::StrJoin(names, ", "), ")");
}

std::string TextParser::DescribeColumns(absl::Span<const absl::string_view> columns) const {
  for (size_t c = 0; c < columns.size(); ++c) {
    std::string wrong = DescribeColumn(static_cast<int>(c), columns[c]);
    for (const Keys& keys : features_) {
      if (!wrong.empty() || keys.weights != static_cast<int>(c)) continue;
      wrong = keys.list_weights->Describe(*keys.reader, columns_.names[keys.column],
                                          columns[keys.column], columns[c]);
    }
    if (wrong.empty()) continue;
    return absl::StrCat("column ", c + 1, " ('", columns_.names[c], "'): ", wrong);
  }
  const std::string no_label = DescribeLabels([&](int column) { return columns[column]; });
  if (!no_label.empty()) return no_label;
  const auto length_of = [&](int f) {
    return features_[f].reader->CountValues(columns[features_[f].column]);
  };
  const StepLists::Mismatch mismatch = step_lists_.FindMismatch(length_of);
  if (mismatch.first < 0) return "the line is malformed";
  const auto name_of = [&](int f) {
    const int column = features_[f].column;
    return absl::StrCat("column ", column + 1, " ('", columns_.names[column], "')");
  };
  return StepLists::Describe(mismatch, name_of(mismatch.first), length_of(mismatch.first),
                             name_of(mismatch.second), length_of(mismatch.second));
}

std::vector<std::string> TextParser::DoubtSeparators(
    absl::Span<const absl::string_view> lines) const {
  std::vector<LineColumns> split(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) SplitLine(lines[i], format_, &split[i]);
  std::vector<std::string> doubts;
  for (const Keys& keys : features_) {
    if (!keys.reader.has_value() || !keys.reader->divides()) continue;
    const char separator = keys.reader->separator();
    std::vector<absl::string_view> texts;
    for (const LineColumns& line : split) {
      if (keys.column < static_cast<int>(line.columns.size())) {
        texts.push_back(line.columns[keys.column]);
      }
    }
    const auto has = [](char c) {
      return [c](absl::string_view t) { return t.find(c) != t.npos; };
    };
    const char guess = GuessListSeparator(texts, /*of_columns=*/0);
    if (guess == 0 || std::any_of(texts.begin(), texts.end(), has(separator))) continue;
    doubts.push_back(absl::StrCat(
        "none of the first ", lines.size(), " rows has several values in '",
        columns_.names[keys.column], "': the separator of this list is '",
        std::string(1, separator), "', and ", std::count_if(texts.begin(), texts.end(), has(guess)),
        " rows have '", std::string(1, guess), "'; as it is, each list is one id. ",
        guess == format_.separator
            ? "The file's columns have that separator, too: write the lists with another"
            : absl::StrCat("If it divides them, write categorical { separator: \"",
                           std::string(1, guess), "\" }")));
  }
  return doubts;
}

ValueSplit::ValueSplit(int column, absl::string_view test_from)
    : column_(column), from_(test_from), number_(ParseNumber(test_from)) {}

std::optional<bool> ValueSplit::IsHeldOut(absl::string_view value) const {
  if (!number_.has_value()) return value >= absl::string_view(from_);
  const std::optional<double> number = ParseNumber(value);
  if (!number.has_value()) return std::nullopt;
  return *number >= *number_;
}

}  // namespace thermocline
