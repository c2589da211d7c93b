#include "worker/data/column_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/data/text/number_text.h"

namespace thermocline {
namespace {

constexpr int kLog1pEntries = NumberReader::kLog1pEntries;
double Log1p(double value) { return std::log1p(std::max(value, 0.0)); }

// [kLog1pEntries] All columns share this table, so that it stays in the nearest cache.
const float* Log1pTable() {
  static const std::array<float, kLog1pEntries>* const table = [] {
    auto* const values = new std::array<float, kLog1pEntries>;
    for (int i = 0; i < kLog1pEntries; ++i) (*values)[i] = static_cast<float>(Log1p(i));
    return values;
  }();
  return table->data();
}

// Little-endian, as all machines that we build for.
template <typename T>
T Load(const char* from) {
  T word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// `text` as a number of 8 bytes, filled up with zeros. REQUIRES: 1 to 7 bytes
inline uint64_t LoadUpTo7(absl::string_view text) {
  const char* const data = text.data();
  const size_t n = text.size();
  if (n >= 4) {  // Its first and last four bytes, which may overlap.
    return Load<uint32_t>(data) | uint64_t{Load<uint32_t>(data + n - 4)} << (8 * (n - 4));
  }
  const auto byte = [data](size_t i) { return uint64_t{static_cast<uint8_t>(data[i])} << (8 * i); };
  return byte(0) | byte(n / 2) | byte(n - 1);
}

}  // namespace

Key HashText(absl::string_view text) {
  uint64_t hash = Mix64(text.size());
  for (; text.size() >= 8; text.remove_prefix(8)) hash = Mix64(hash ^ Load<uint64_t>(text.data()));
  if (!text.empty()) hash = Mix64(hash ^ LoadUpTo7(text));
  return hash == kEmptyCategoryKey ? 0 : hash;
}

std::string QuoteText(absl::string_view text) {
  constexpr size_t kShown = 40;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "'");
}

// ---- NumberReader

NumberReader::NumberReader(const Feature::Numeric& numeric, MissingNumbers missing_numbers)
    : missing_numbers_(std::move(missing_numbers)),
      transforms_(numeric.transform().begin(), numeric.transform().end()) {
  float value;
  if (numeric.has_missing() && Transform(numeric.missing(), &value)) missing_ = value;
  if (transforms_.size() != 1 || !transforms_[0].has_log1p()) return;
  if (missing_numbers_.has_numbers()) return;
  log1p_ = Log1pTable();
}

bool NumberReader::Transform(double number, float* value) const {
  for (const Feature::Numeric::Transform& transform : transforms_) {
    if (transform.has_log1p()) {
      number = Log1p(number);
    } else if (transform.has_clip()) {
      if (transform.clip().has_min()) number = std::max(number, transform.clip().min());
      if (transform.clip().has_max()) number = std::min(number, transform.clip().max());
    } else {
      number = (number - transform.standardize().mean()) / transform.standardize().std();
    }
  }
  *value = static_cast<float>(number);
  return std::isfinite(*value);
}

bool NumberReader::ReadNumber(double number, float* value) const {
  if (log1p_ != nullptr && number >= 0 && number < kLog1pEntries) {
    const auto integer = static_cast<size_t>(number);
    if (static_cast<double>(integer) == number) {
      *value = log1p_[integer];
      return true;
    }
  }
  if (missing_numbers_.has_numbers() && missing_numbers_.HasNumber(number)) {
    return ReadMissing(value);
  }
  return Transform(number, value);
}

bool NumberReader::ReadMissing(float* value) const {
  *value = missing_.value_or(0);
  return missing_.has_value();
}

bool NumberReader::ReadAny(absl::string_view text, float* value) const {
  if (text.empty()) return ReadMissing(value);
  int64_t integer;
  if (ParseShortInteger(text, &integer)) {
    if (log1p_ != nullptr && integer < kLog1pEntries) {
      *value = integer < 0 ? 0 : log1p_[integer];
      return true;
    }
    return ReadNumber(static_cast<double>(integer), value);
  }
  const std::optional<double> number = ParseNumber(text);
  if (number.has_value()) return ReadNumber(*number, value);
  return missing_numbers_.HasText(text) && ReadMissing(value);
}

std::string NumberReader::Describe(absl::string_view text) const {
  float value;
  if (Read(text, &value)) return "";
  if (text.empty()) return "it is empty, and numeric.missing says nothing of that";
  const std::optional<double> number = ParseNumber(text);
  if (number.has_value() ? missing_numbers_.HasNumber(*number) : missing_numbers_.HasText(text)) {
    return absl::StrCat(QuoteText(text), " is missing, and numeric.missing says nothing of that");
  }
  return absl::StrCat(QuoteText(text),
                      number.has_value() ? " is too large a number" : " is not a number");
}

// ---- KeyReader

KeyReader::KeyReader(const Feature& feature, MissingNumbers missing_numbers, bool is_by_step)
    : keeps_first_(feature.sequence().keep() == Feature::Sequence::FIRST),
      is_by_step_(is_by_step),
      missing_(feature.categorical().missing()),
      missing_numbers_(std::move(missing_numbers)),
      buckets_(feature.categorical().buckets()),
      start_(feature.categorical().substring().start()),
      length_(feature.categorical().substring().length()),
      max_length_(feature.sequence().max_length()),
      boundaries_(feature.categorical().boundaries().begin(),
                  feature.categorical().boundaries().end()) {
  const Feature::Categorical& categorical = feature.categorical();
  if (categorical.has_min()) min_ = categorical.min();
  if (!categorical.separator().empty()) separator_ = categorical.separator()[0];
  if (length_ == 0) length_ = absl::string_view::npos;
  kind_ = !boundaries_.empty()                                ? Kind::kBoundaries
          : categorical.id() == Feature::Categorical::INTEGER ? Kind::kInteger
          : categorical.id() == Feature::Categorical::HEX     ? Kind::kHex
                                                              : Kind::kString;
  is_plain_hex_ = kind_ == Kind::kHex && buckets_ == 0 && start_ == 0 &&
                  length_ == absl::string_view::npos &&
                  kHex[static_cast<unsigned char>(separator_)] == kNotHex;
}

absl::string_view KeyReader::Substring(absl::string_view text) const {
  return text.substr(std::min(start_, text.size()), length_);
}

inline KeyReader::Result KeyReader::IntegerKey(int64_t number, bool is_negative, Key* key) const {
  // An integer above 2^63 - 1 has negative bits, and is no small number.
  if (min_.has_value() && number < *min_ && (number >= 0 || is_negative)) return Result::kMissing;
  *key = static_cast<Key>(number);
  if (*key == kEmptyCategoryKey) return Result::kMissing;
  if (buckets_ > 0) *key = Mix64(*key) % buckets_;
  return Result::kKey;
}

inline KeyReader::Result KeyReader::ReadOne(absl::string_view whole, Key* key) const {
  const absl::string_view text = Substring(whole);
  if (text.empty()) return Result::kMissing;
  switch (kind_) {
    case Kind::kHex:
      if (!ParseHex(text, key)) return NoNumber(whole);
      if (buckets_ > 0) *key = Mix64(*key) % buckets_;
      return Result::kKey;
    case Kind::kInteger: {
      int64_t number;
      if (!ParseInteger(text, &number)) return NoNumber(whole);
      return IntegerKey(number, text[0] == '-', key);
    }
    case Kind::kBoundaries: {
      const std::optional<double> number = ParseNumber(text);
      if (!number.has_value()) return NoNumber(whole);
      if (missing_numbers_.HasNumber(*number)) return Result::kMissing;
      *key =
          std::upper_bound(boundaries_.begin(), boundaries_.end(), *number) - boundaries_.begin();
      return Result::kKey;
    }
    case Kind::kString:
      *key = HashText(text);
      if (buckets_ > 0) *key %= buckets_;
      return Result::kKey;
  }
  return Result::kMalformed;
}

inline bool KeyReader::Add(Result result, Key key, KeyBuffer* keys) const {
  switch (result) {
    case Result::kKey:
      keys->Add(key);
      return true;
    case Result::kMissing:
      if (missing_ == Feature::Categorical::MALFORMED) return false;
      if (missing_ == Feature::Categorical::NO_KEY) return !is_by_step_;
      keys->Add(kEmptyCategoryKey);
      return true;
    case Result::kMalformed:
      return false;
  }
  return false;
}

bool KeyReader::AddOne(absl::string_view text, KeyBuffer* keys) const {
  Key key = 0;
  const Result result = ReadOne(text, &key);
  return Add(result, key, keys);
}

bool KeyReader::ReadInteger(int64_t number, KeyBuffer* keys) const {
  if (kind_ == Kind::kInteger && start_ == 0 && length_ == absl::string_view::npos) {
    Key key = 0;
    const Result result = IntegerKey(number, number < 0, &key);
    return Add(result, key, keys);
  }
  char text[24];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), number);
  return AddOne(absl::string_view(text, end.ptr - text), keys);
}

void KeyReader::Shorten(size_t begin, KeyBuffer* keys) const {
  const size_t count = keys->size - begin;
  if (max_length_ == 0 || count <= max_length_) return;
  if (!keeps_first_) {
    Key* const first = keys->data + begin;
    std::copy(first + (count - max_length_), first + count, first);
  }
  keys->size = begin + max_length_;
  keys->left_out += count - max_length_;
}

bool KeyReader::ReadAny(absl::string_view text, KeyBuffer* keys) const {
  if (text.empty() && is_by_step_) return missing_ != Feature::Categorical::MALFORMED;
  if (text.empty() && missing_ == Feature::Categorical::OWN_KEY) {
    keys->Add(kEmptyCategoryKey);
    return true;
  }
  if (separator_ == 0 || text.empty()) return AddOne(text, keys);
  const size_t begin = keys->size;
  for (;;) {
    const size_t end = text.find(separator_);
    const absl::string_view value = text.substr(0, end);
    if (value.empty() || !AddOne(value, keys)) return false;
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  Shorten(begin, keys);
  return true;
}

std::string KeyReader::DescribeOne(absl::string_view text) const {
  Key key;
  const Result result = ReadOne(text, &key);
  if (result == Result::kKey) return "";
  if (result == Result::kMissing) {
    if (missing_ == Feature::Categorical::MALFORMED) {
      return absl::StrCat(QuoteText(text), " is missing, which categorical.missing refuses");
    }
    if (missing_ == Feature::Categorical::OWN_KEY || !is_by_step_) return "";
    return absl::StrCat(QuoteText(text),
                        " is missing and has no key, as each step of a sequence must");
  }
  text = Substring(text);
  if (kind_ == Kind::kBoundaries) return absl::StrCat(QuoteText(text), " is not a number");
  if (kind_ == Kind::kInteger) {
    return absl::StrCat(QuoteText(text), " is not an integer of 64 bits");
  }
  if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return kHex[c] != kNotHex; })) {
    return absl::StrCat(QuoteText(text), " is not a hexadecimal number");
  }
  if (text.size() > kMaxHexDigits) {
    return absl::StrCat(QuoteText(text), " has more than ", kMaxHexDigits, " digits");
  }
  return absl::StrCat(QuoteText(text), " is reserved for empty columns");
}

size_t KeyReader::CountValues(absl::string_view text) const {
  if (text.empty()) return 0;
  return separator_ == 0 ? 1 : 1 + std::count(text.begin(), text.end(), separator_);
}

std::string KeyReader::Describe(absl::string_view text) const {
  if (text.empty() && is_by_step_ && missing_ != Feature::Categorical::MALFORMED) return "";
  if (separator_ == 0 || text.empty()) return DescribeOne(text);
  for (;;) {
    const size_t end = text.find(separator_);
    const absl::string_view value = text.substr(0, end);
    if (value.empty()) return "an empty value among several";
    std::string wrong = DescribeOne(value);
    if (!wrong.empty() || end == text.npos) return wrong;
    text.remove_prefix(end + 1);
  }
}

// ---- CrossKeys

Key CrossKeys(const std::vector<Key>& keys, uint64_t buckets) {
  uint64_t hash = Mix64(keys.size());
  for (const Key key : keys) hash = Mix64(hash ^ key);
  if (buckets > 0) return hash % buckets;
  return hash == kEmptyCategoryKey ? 0 : hash;
}

MissingNumbers::MissingNumbers() {
  for (const absl::string_view text :
       {"-", "n/a", "N/A", "#N/A", "NA", "<NA>", "null", "NULL", "Null", "nan", "NaN", "NAN",
        "-nan", "none", "None", "NONE", "\\N"}) {
    Add(text);
  }
}

MissingNumbers::MissingNumbers(const Data& data) {
  if (data.missing_number().empty()) *this = MissingNumbers();
  for (const std::string& text : data.missing_number()) Add(text);
}

void MissingNumbers::Add(absl::string_view text) {
  const std::optional<double> number = ParseNumber(text);
  if (number.has_value()) {
    numbers_.push_back(*number);
  } else {
    texts_.emplace_back(text);
  }
}

bool MissingNumbers::HasText(absl::string_view text) const {
  return std::find(texts_.begin(), texts_.end(), text) != texts_.end();
}

bool MissingNumbers::HasNumber(double number) const {
  return std::find(numbers_.begin(), numbers_.end(), number) != numbers_.end();
}

}  // namespace thermocline
