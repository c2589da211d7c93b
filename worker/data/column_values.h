// What the text of one column becomes: a number, or keys. docs/formats.md has the arithmetic.
#ifndef THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_
#define THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/uninitialized_vector.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/key_buffer.h"
#include "worker/data/missing_numbers.h"
#include "worker/data/text/number_text.h"

namespace thermocline {

// The key of a text: a hash of its bytes, never kEmptyCategoryKey.
Key HashText(absl::string_view text);

// `text` for a message: in quotes, escaped, cut to 40 bytes.
std::string QuoteText(absl::string_view text);

// Immutable.
class NumberReader {
 public:
  static constexpr int kLog1pEntries = 4096;
  // REQUIRES: of a resolved, valid job
  explicit NumberReader(const Feature::Numeric& numeric, MissingNumbers missing_numbers = {});

  // False: `text` is malformed.
  bool Read(absl::string_view text, float* value) const {
    // Up to three digits: most numbers of click logs.
    const size_t n = text.size();
    if (log1p_ != nullptr && n - 1 < 3) {
      static constexpr unsigned kFirst[] = {0, 0, 10, 100}, kSecond[] = {0, 0, 0, 10};
      const auto digit = [text](size_t i) { return static_cast<unsigned char>(text[i]) - 48u; };
      const unsigned first = digit(0), second = digit(n / 2), last = digit(n - 1);
      if (first <= 9 && second <= 9 && last <= 9) {
        *value = log1p_[kFirst[n] * first + kSecond[n] * second + last];
        return true;
      }
    }
    return ReadAny(text, value);
  }
  // As Read() of its decimal text. REQUIRES: a finite number
  bool ReadNumber(double number, float* value) const;
  bool ReadInteger(int64_t number, float* value) const {
    const bool is_known = log1p_ != nullptr && number >= 0 && number < kLog1pEntries;
    if (is_known) *value = log1p_[number];
    return is_known || ReadNumber(static_cast<double>(number), value);
  }
  bool has_transforms() const { return !transforms_.empty(); }
  // What is wrong with `text`; "" where nothing is.
  std::string Describe(absl::string_view text) const;

 private:
  bool ReadAny(absl::string_view text, float* value) const;
  bool ReadMissing(float* value) const;
  // In float64; false where the result is not finite as a float32.
  bool Transform(double number, float* value) const;

  MissingNumbers missing_numbers_;
  std::optional<float> missing_;  // Transformed.
  std::vector<Feature::Numeric::Transform> transforms_;
  // Of small integers, where that is the only transform and none of them is missing; else null.
  // [kLog1pEntries]
  const float* log1p_ = nullptr;
};

// Immutable.
class KeyReader {
 public:
  // REQUIRES: a feature with a column of its own, of a resolved, valid job
  explicit KeyReader(const Feature& feature, MissingNumbers missing_numbers = {});

  // Adds the keys of `text`. False: it is malformed, and some may have been added.
  bool Read(absl::string_view text, KeyBuffer* keys) const {
    return ReadEightHex(text, keys) || ReadAny(text, keys);
  }
  // The same where `text` is one value, whatever it contains: an element of a list.
  bool ReadValue(absl::string_view text, KeyBuffer* keys) const {
    return ReadEightHex(text, keys) || AddOne(text, keys);
  }
  // As ReadValue() of the decimal text.
  bool ReadInteger(int64_t number, KeyBuffer* keys) const;
  // Leaves of the keys from `begin` on, those of one list, what a sequence keeps.
  void Shorten(size_t begin, KeyBuffer* keys) const;
  // Whether Read() divides a text, and where. 0: it doesn't.
  bool divides() const { return separator_ != 0; }
  char separator() const { return separator_; }
  bool keeps_first() const { return keeps_first_; }  // What a sequence keeps.
  // What is wrong with `text`; "" where nothing is.
  std::string Describe(absl::string_view text) const;
  std::string DescribeValue(absl::string_view text) const { return DescribeOne(text); }

 private:
  enum class Kind { kString, kInteger, kHex, kBoundaries };
  enum class Result { kKey, kMissing, kMalformed };

  // Criteo's ids. False: it is none, and nothing was added.
  bool ReadEightHex(absl::string_view text, KeyBuffer* keys) const {
    Key key;
    if (!is_plain_hex_ || text.size() != 8 || !ParseEightHex(text.data(), &key)) return false;
    keys->Add(key);
    return true;
  }
  bool ReadAny(absl::string_view text, KeyBuffer* keys) const;
  Result ReadOne(absl::string_view text, Key* key) const;
  // `text` is none of the numbers or ids of this feature.
  Result NoNumber(absl::string_view text) const {
    return missing_numbers_.HasText(text) ? Result::kMissing : Result::kMalformed;
  }
  // Of an integer of 64 bits, the negative ones by their sign.
  Result IntegerKey(int64_t number, bool is_negative, Key* key) const;
  bool Add(Result result, Key key, KeyBuffer* keys) const;
  bool AddOne(absl::string_view text, KeyBuffer* keys) const;
  std::string DescribeOne(absl::string_view text) const;
  absl::string_view Substring(absl::string_view text) const;

  // What every value needs comes first. A text of hexadecimal digits is its key, as a whole: there
  // are no buckets, no substring, and the separator is no digit.
  bool is_plain_hex_ = false;
  char separator_ = 0;  // 0: one value
  bool keeps_first_ = false;
  Kind kind_ = Kind::kString;
  Feature::Categorical::Missing missing_;
  MissingNumbers missing_numbers_;
  uint64_t buckets_;
  size_t start_, length_;
  size_t max_length_ = 0;  // 0: no sequence
  std::optional<int64_t> min_;
  std::vector<double> boundaries_;
};

// The key of several features' keys together. Never kEmptyCategoryKey.
Key CrossKeys(const std::vector<Key>& keys, uint64_t buckets);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_
