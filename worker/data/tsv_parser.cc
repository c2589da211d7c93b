#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/data/tsv_source.h"

namespace thermocline {
namespace {

constexpr int kLog1pEntries = 4096;
constexpr int kMaxIntegerDigits = 18;  // Always fit an int64.
constexpr int kMaxHexDigits = 16;
constexpr uint8_t kNotHex = 0xff;

constexpr std::array<uint8_t, 256> MakeHexTable() {
  std::array<uint8_t, 256> table = {};
  for (int c = 0; c < 256; ++c) {
    table[c] = c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : kNotHex;
  }
  return table;
}
constexpr std::array<uint8_t, 256> kHex = MakeHexTable();

// Whether a column ends at p: at a tab, or, if it is the line's last, at the line's end.
inline bool AtColumnEnd(const char* p, bool last) {
  if (!last) return *p == '\t';
  return *p == '\n' || (*p == '\r' && p[1] == '\n');
}

float Log1p(double value) { return static_cast<float>(std::log1p(std::max(value, 0.0))); }

// A number with a point, an exponent or many digits. Returns its end, or null.
const char* ParseDecimal(const char* p, float* value) {
  const char* end = p;
  while (*end != '\t' && *end != '\n' && *end != '\r') ++end;
  double number = 0;
  const std::from_chars_result result = std::from_chars(p, end, number);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(number)) return nullptr;
  *value = Log1p(number);
  return end;
}

// Each Parse function reads one column, which a tab or the line's end follows, and returns where it
// stopped: at the end of the column if it is well formed. Null: it is not.
inline const char* ParseDense(const char* p, const float* log1p, float* value) {
  const char* const begin = p;
  const bool negative = *p == '-';
  if (negative) ++p;
  const char* const digits = p;
  int64_t number = 0;
  for (unsigned digit; (digit = static_cast<unsigned char>(*p) - '0') < 10u; ++p) {
    number = static_cast<int64_t>(static_cast<uint64_t>(number) * 10 + digit);
  }
  const bool at_end = *p == '\t' || *p == '\n' || *p == '\r';
  if (p == begin && at_end) {
    *value = 0;
    return p;
  }
  const bool plain = at_end && p > digits && p - digits <= kMaxIntegerDigits;
  if (!plain) return ParseDecimal(begin, value);
  *value = negative                 ? 0
           : number < kLog1pEntries ? log1p[number]
                                    : Log1p(static_cast<double>(number));
  return p;
}

// One value of a category, at least one digit.
inline const char* ParseHex(const char* p, Key* key) {
  const char* const begin = p;
  Key value = 0;
  for (uint8_t digit; (digit = kHex[static_cast<unsigned char>(*p)]) != kNotHex; ++p) {
    value = value << 4 | digit;
  }
  *key = value;
  if (p == begin || p - begin > kMaxHexDigits || value == kEmptyCategoryKey) return nullptr;
  return p;
}

std::string Quote(absl::string_view text) {
  constexpr size_t kShown = 40;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "'");
}

// What is wrong with one value of a category; "" if nothing is.
std::string DescribeHex(absl::string_view text) {
  if (text.empty()) return "an empty value among several";
  if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return kHex[c] != kNotHex; })) {
    return absl::StrCat(Quote(text), " is not a hexadecimal number");
  }
  if (text.size() > kMaxHexDigits) {
    return absl::StrCat(Quote(text), " has more than ", kMaxHexDigits, " digits");
  }
  const bool reserved =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return kHex[c] == 0xf; });
  if (reserved && text.size() == kMaxHexDigits) {
    return absl::StrCat(Quote(text), " is reserved for empty columns");
  }
  return "";
}

// Names of columns: no label, no number, no empty column.
bool LooksLikeHeader(const std::vector<absl::string_view>& columns) {
  return columns.size() > 1 &&
         std::all_of(columns.begin(), columns.end(), [](absl::string_view column) {
           column = absl::StripPrefix(column, "\"");
           return !column.empty() && (absl::ascii_isalpha(column[0]) || column[0] == '_');
         });
}

// A line without a tab and with commas.
std::string DescribeCommas(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, ',');
  const bool has_header = LooksLikeHeader(columns);
  return absl::StrCat(
      columns.size(), " columns separated by commas; CRITEO_TSV separates them by tabs",
      has_header
          ? absl::StrCat(", and has no header, which the line looks like (", Quote(line), ")")
          : "",
      "; convert the file, label first: ", has_header ? "tail -n +2 FILE | " : "", "tr ',' '\\t'",
      has_header ? "" : " < FILE");
}

}  // namespace

struct TsvParser::Keys {
  UninitializedVector<Key>* keys;
  size_t size = 0;

  void Add(Key key) {
    if (size == keys->size()) keys->resize(std::max<size_t>(64, 2 * size));
    (*keys)[size++] = key;
  }
};

TsvParser::TsvParser(int num_dense, std::vector<std::string> feature_names)
    : num_dense_(num_dense), feature_names_(std::move(feature_names)) {
  for (int i = 0; i < kLog1pEntries; ++i) log1p_.push_back(Log1p(i));
}

bool TsvParser::ParseLine(const char* p, float* dense, float* label,
                          std::vector<Keys>* features) const {
  const int last = num_columns() - 1;
  if ((*p != '0' && *p != '1') || !AtColumnEnd(p + 1, last == 0)) return false;
  *label = static_cast<float>(*p - '0');
  ++p;
  for (int i = 0; i < num_dense_; ++i) {
    p = ParseDense(p + 1, log1p_.data(), &dense[i]);
    if (p == nullptr || !AtColumnEnd(p, 1 + i == last)) return false;
  }
  const int num_features = static_cast<int>(feature_names_.size());
  for (int f = 0; f < num_features; ++f) {
    Keys& keys = (*features)[f];
    const bool is_last = f + 1 == num_features;
    if (AtColumnEnd(++p, is_last)) {
      keys.Add(kEmptyCategoryKey);
      continue;
    }
    for (;; ++p) {
      Key key;
      p = ParseHex(p, &key);
      if (p == nullptr) return false;
      keys.Add(key);
      if (*p != ',') break;
    }
    if (!AtColumnEnd(p, is_last)) return false;
  }
  return true;
}

void TsvParser::ParseLines(const char* text, const uint64_t* line_begin, int64_t begin, int64_t end,
                           Batch* batch, std::vector<int64_t>* bad) const {
  const size_t rows = end - begin;
  const int stride = PaddedDenseColumns(num_dense_);
  batch->num_dense = num_dense_;
  batch->dense_stride = stride;
  batch->dense.resize(rows * stride);
  batch->labels.resize(rows);
  batch->features.resize(feature_names_.size());
  std::vector<Keys> features;
  features.reserve(feature_names_.size());
  for (FeatureLookups& feature : batch->features) {
    feature.keys.resize(std::max(feature.keys.capacity(), rows));
    feature.offsets.resize(rows + 1);
    feature.offsets[0] = 0;
    features.push_back(Keys{&feature.keys});
  }
  size_t row = 0;
  for (int64_t i = begin; i < end; ++i) {
    float* const dense = batch->dense.data() + row * stride;
    if (!ParseLine(text + line_begin[i], dense, &batch->labels[row], &features)) {
      bad->push_back(i);
      for (size_t f = 0; f < features.size(); ++f) {
        features[f].size = batch->features[f].offsets[row];
      }
      continue;
    }
    std::fill(dense + num_dense_, dense + stride, 0.0f);
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

std::string TsvParser::ColumnName(int column) const {
  std::string name = column == 0            ? "label"
                     : column <= num_dense_ ? absl::StrCat("I", column)
                                            : feature_names_[column - 1 - num_dense_];
  return absl::StrCat("column ", column + 1, " ('", name, "')");
}

std::string TsvParser::Describe(absl::string_view line) const {
  line = absl::StripSuffix(line, "\n");
  line = absl::StripSuffix(line, "\r");
  if (line.empty()) return "the line is empty";
  const std::vector<absl::string_view> columns = absl::StrSplit(line, '\t');
  if (columns.size() == 1 && line.find(',') != line.npos) return DescribeCommas(line);
  if (LooksLikeHeader(columns)) {
    return absl::StrCat("the line looks like a header (", Quote(line),
                        "), which CRITEO_TSV doesn't have; leave it out: tail -n +2");
  }
  if (columns.size() != static_cast<size_t>(num_columns())) {
    return absl::StrCat(columns.size(), columns.size() == 1 ? " column" : " columns", ", not ",
                        num_columns(), " (1 label + data.num_dense=", num_dense_,
                        " + data.num_categorical=", feature_names_.size(), ")");
  }
  for (int c = 0; c < num_columns(); ++c) {
    std::string wrong;
    if (c == 0) {
      if (columns[c] != "0" && columns[c] != "1") wrong = Quote(columns[c]) + " is not 0 or 1";
    } else if (c <= num_dense_) {
      float value;
      const std::string text = absl::StrCat(columns[c], "\n");
      const char* const end = ParseDense(text.data(), log1p_.data(), &value);
      if (end != text.data() + columns[c].size()) wrong = Quote(columns[c]) + " is not a number";
    } else if (!columns[c].empty()) {
      for (absl::string_view value : absl::StrSplit(columns[c], ',')) {
        if (wrong.empty()) wrong = DescribeHex(value);
      }
    }
    if (!wrong.empty()) return absl::StrCat(ColumnName(c), ": ", wrong);
  }
  return "the line is malformed";
}

}  // namespace thermocline
