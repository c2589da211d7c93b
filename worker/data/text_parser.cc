#include "worker/data/text_parser.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"

namespace thermocline {
namespace {

// Bytes that are compared at a time.
constexpr int kSplitBytes = 32;

// A bit for each of the kSplitBytes at `p` that is `wanted`.
inline uint32_t MatchesAt(const char* p, __m256i wanted) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, wanted)));
}

// Returns how many there are, at the front of `columns`.
size_t SplitPlain(absl::string_view line, char separator, std::vector<absl::string_view>* columns) {
  const char* begin = line.data();
  const char* const end = begin + line.size();
  const __m256i wanted = _mm256_set1_epi8(separator);
  size_t count = 0;
  const auto add_columns = [&](const char* p, uint32_t matches) {
    // Room for a column at every byte, and the last.
    if (columns->size() < count + kSplitBytes + 1) columns->resize(2 * count + kSplitBytes + 1);
    absl::string_view* to = columns->data() + count;
    for (; matches != 0; matches &= matches - 1) {
      const char* const at = p + __builtin_ctz(matches);
      *to++ = absl::string_view(begin, at - begin);
      begin = at + 1;
    }
    count = to - columns->data();
  };
  const char* p = begin;
  for (; end - p >= kSplitBytes; p += kSplitBytes) add_columns(p, MatchesAt(p, wanted));
  char rest[kSplitBytes] = {};
  if (p < end) std::memcpy(rest, p, end - p);
  const uint32_t matches = MatchesAt(rest, wanted) & ((uint32_t{1} << (end - p)) - 1);
  add_columns(p, matches);
  (*columns)[count++] = absl::string_view(begin, end - begin);
  return count;
}

// Takes a column that begins with a quote from the front of `*rest`; false where other text follows
// the closing quote, or there is none. `unquoted` has room for all of the line.
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

std::string Columns(size_t count) {
  return absl::StrCat(count, count == 1 ? " column" : " columns");
}

// A line without a tab and with commas.
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
  line = absl::StripSuffix(line, "\n");
  return absl::StripSuffix(line, "\r");
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
  if (!format.quotes || line.find('"') == line.npos) {
    const size_t count = SplitPlain(line, format.separator, &out->storage);
    out->columns = absl::MakeConstSpan(out->storage.data(), count);
    return;
  }
  out->storage.clear();
  out->unquoted.clear();
  out->unquoted.reserve(line.size());  // Columns point into it.
  for (absl::string_view rest = line;;) {
    absl::string_view column;
    if (!rest.empty() && rest.front() == '"') {
      if (!TakeQuoted(&rest, format.separator, &column, &out->unquoted)) {
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
  std::map<absl::string_view, int> index;
  for (const Feature* feature : EmbeddedFeatures(job)) {
    Keys keys;
    if (!feature->has_cross()) {
      ASSIGN_OR_RETURN(keys.column,
                       Find(feature->column(0), absl::StrCat("feature '", feature->name(), "'")));
      keys.reader.emplace(*feature);
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
    numbers_.push_back({column, NumberReader(feature->numeric())});
  }
  return absl::OkStatus();
}

absl::StatusOr<TextParser> TextParser::Make(const Job& job, const Data& data, ColumnNames columns) {
  TextParser parser;
  parser.is_criteo_ = data.train().has_criteo_tsv();
  if (!parser.is_criteo_) {
    parser.format_.separator = data.train().csv().separator().at(0);
    parser.format_.quotes = data.train().csv().quotes();
  }
  parser.columns_ = std::move(columns);
  for (const std::string& column : data.label().column()) {
    ASSIGN_OR_RETURN(const int label, parser.Find(column, "data.label.column"));
    parser.labels_.push_back(label);
  }
  parser.positive_.assign(data.label().positive().begin(), data.label().positive().end());
  if (!data.split().column().empty()) {
    ASSIGN_OR_RETURN(const int column, parser.Find(data.split().column(), "data.split.column"));
    parser.split_.emplace(column, data.split().test_from());
  }
  RETURN_IF_ERROR(parser.AddFeatures(job));
  return parser;
}

// ---- rows

bool TextParser::ParseLabel(absl::string_view text, float* label) const {
  if (!positive_.empty()) {
    *label = std::find(positive_.begin(), positive_.end(), text) != positive_.end() ? 1 : 0;
    return true;
  }
  if (text.size() != 1 || (text[0] != '0' && text[0] != '1')) return false;
  *label = static_cast<float>(text[0] - '0');
  return true;
}

bool TextParser::ParseRow(const LineColumns& line, float* dense, float* label,
                          std::vector<KeyBuffer>* features) const {
  if (line.misquoted >= 0 || line.columns.size() != columns_.names.size()) return false;
  for (size_t i = labels_.size(); i-- > 0;) {  // The first is read last, and stays.
    if (!ParseLabel(line.columns[labels_[i]], label)) return false;
  }
  for (const Number& number : numbers_) {
    if (!number.reader.Read(line.columns[number.column], dense++)) return false;
  }
  bool has_cross = false;
  for (size_t f = 0; f < features_.size(); ++f) {
    const Keys& keys = features_[f];
    has_cross |= keys.column < 0;
    if (keys.column < 0) continue;
    if (!keys.reader->Read(line.columns[keys.column], &(*features)[f])) return false;
  }
  if (split_.has_value() && !split_->IsHeldOut(line.columns[split_->column()])) return false;
  if (!has_cross) return true;
  std::vector<Key> values;
  for (size_t f = 0; f < features_.size(); ++f) {
    if (features_[f].column >= 0) continue;
    values.clear();
    for (const int of : features_[f].cross) {
      const KeyBuffer& component = (*features)[of];
      values.push_back((*component.keys)[component.size - 1]);
    }
    (*features)[f].Add(CrossKeys(values, features_[f].buckets));
  }
  return true;
}

void TextParser::ParseRows(const RawBatch& raw, int64_t begin, int64_t end, Batch* batch,
                           std::vector<int64_t>* bad) const {
  const size_t rows = end - begin;
  const int num_dense = static_cast<int>(numbers_.size());
  const int stride = PaddedDenseColumns(num_dense);
  batch->num_dense = num_dense;
  batch->dense_stride = stride;
  batch->dense.resize(rows * stride);
  batch->labels.resize(rows);
  batch->features.resize(features_.size());
  std::vector<KeyBuffer> features;
  features.reserve(features_.size());
  for (FeatureLookups& feature : batch->features) {
    feature.keys.resize(std::max(feature.keys.capacity(), rows));
    feature.offsets.resize(rows + 1);
    feature.offsets[0] = 0;
    features.push_back(KeyBuffer{&feature.keys});
  }
  LineColumns line;
  size_t row = 0;
  for (int64_t i = begin; i < end; ++i) {
    float* const dense = batch->dense.data() + row * stride;
    SplitLine(WithoutLineEnd(raw.TextOf(i)), format_, &line);
    if (!ParseRow(line, dense, &batch->labels[row], &features)) {
      bad->push_back(i);
      for (size_t f = 0; f < features.size(); ++f) {
        features[f].size = batch->features[f].offsets[row];
      }
      continue;
    }
    std::fill(dense + num_dense, dense + stride, 0.0f);
    ++row;
    for (size_t f = 0; f < features.size(); ++f) {
      batch->features[f].offsets[row] = static_cast<int32_t>(features[f].size);
    }
  }
  batch->size = static_cast<int>(row);
  batch->dense.resize(row * stride);
  batch->labels.resize(row);
  for (size_t f = 0; f < features.size(); ++f) {
    batch->features[f].keys.resize(features[f].size);
    batch->features[f].offsets.resize(row + 1);
  }
}

bool TextParser::IsHeldOut(absl::string_view line, LineColumns* scratch) const {
  if (!split_.has_value()) return false;
  SplitLine(WithoutLineEnd(line), format_, scratch);
  if (scratch->misquoted >= 0 || scratch->columns.size() != columns_.names.size()) return false;
  return split_->IsHeldOut(scratch->columns[split_->column()]).value_or(false);
}

// ---- what is wrong

std::string TextParser::DescribeCount(absl::string_view line, size_t columns) const {
  std::string text =
      absl::StrCat(Columns(columns), ", not ", columns_.names.size(), " (", columns_.source, ")");
  if (columns > 1) return text;
  for (const char other : {',', '\t', ';', '|'}) {
    const auto others = static_cast<size_t>(std::count(line.begin(), line.end(), other));
    if (others + 1 != columns_.names.size() || other == format_.separator) continue;
    absl::StrAppend(&text, "; with separator: ",
                    other == '\t' ? "\"\\t\"" : absl::StrCat("\"", std::string(1, other), "\""),
                    " they would be ", columns_.names.size());
  }
  return text;
}

std::string TextParser::DescribeColumn(int column, absl::string_view text) const {
  float ignored;
  if (std::count(labels_.begin(), labels_.end(), column) > 0 && !ParseLabel(text, &ignored)) {
    return absl::StrCat(QuoteText(text), " is not 0 or 1");
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

std::string TextParser::Describe(absl::string_view line) const {
  line = WithoutLineEnd(line);
  if (line.empty()) return "the line is empty";
  LineColumns split;
  SplitLine(line, format_, &split);
  const absl::Span<const absl::string_view> columns = split.columns;
  if (split.misquoted >= 0) {
    return absl::StrCat("column ", split.misquoted + 1,
                        " begins with a quote that is not closed at its end (a quote within "
                        "quotes is written twice; quotes: false reads it as it is)");
  }
  if (is_criteo_ && columns.size() == 1 && line.find(',') != line.npos) return DescribeCommas(line);
  if (is_criteo_ && LooksLikeHeader(columns)) {
    return absl::StrCat("the line looks like a header (", QuoteText(line),
                        "), which CRITEO_TSV doesn't have; leave it out: tail -n +2, or describe "
                        "the file with data.train { csv {} } and `feature`");
  }
  if (columns.size() != columns_.names.size()) return DescribeCount(line, columns.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    const std::string wrong = DescribeColumn(static_cast<int>(c), columns[c]);
    if (wrong.empty()) continue;
    return absl::StrCat("column ", c + 1, " ('", columns_.names[c], "'): ", wrong);
  }
  return "the line is malformed";
}

}  // namespace thermocline
