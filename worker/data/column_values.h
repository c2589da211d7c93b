// Turns the text of one column into a number, or into keys. docs/formats.md has the arithmetic.
#ifndef THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_
#define THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/text/number_text.h"

namespace thermocline {

// Which texts stand for a missing number (data.missing_number). Immutable.
class MissingNumbers {
 public:
  MissingNumbers();  // The default texts.
  explicit MissingNumbers(const Data& data);

  // Whether `text`, which is no number, stands for a missing one.
  bool HasText(absl::string_view text) const;
  bool HasNumber(double number) const;
  bool has_numbers() const { return !numbers_.empty(); }

 private:
  void Add(absl::string_view text);

  std::vector<std::string> texts_;
  std::vector<double> numbers_;
};

// Collects the keys of one feature while a batch is parsed. Appends keys to a vector that is larger
// than the `size` keys it holds, so that most calls of Add write one number. It keeps up to `most`
// + 1 keys and drops further ones: a batch may have `most`, and its reader has to see that there
// are too many.
struct KeyBuffer {
  explicit KeyBuffer(UninitializedVector<Key>* keys, UninitializedVector<float>* weights = nullptr,
                     size_t most = kMaxTableLookups)
      : keys(keys),
        weights(weights),
        most(most),
        data(keys->data()),
        capacity(std::min(keys->size(), most + 1)) {}

  UninitializedVector<Key>* keys;       // Only this object changes its size.
  UninitializedVector<float>* weights;  // [size] once a list is read; unused without weights.
  size_t most;
  Key* data;  // keys->data()
  size_t capacity;
  size_t size = 0;
  // Since BeginRow(): where the row's keys begin, and how many a sequence has left out.
  size_t row_begin = 0;
  size_t left_out = 0;

  void BeginRow() {
    row_begin = size;
    left_out = 0;
  }
  // The keys of the row's list, before any was left out.
  size_t row_keys() const { return size - row_begin + left_out; }

  void Add(Key key) {
    if (size == capacity) Grow();
    data[size++] = key;
  }
  void Grow() {
    if (size > most) {
      size = most;
      return;
    }
    capacity = std::min(std::max<size_t>(64, 2 * size), most + 1);
    keys->resize(capacity);
    data = keys->data();
  }
};

// Returns the key of a text: a hash of its bytes, never kEmptyCategoryKey.
Key HashText(absl::string_view text);

// Returns `text` for a message: in quotes, escaped, cut to 40 bytes.
std::string QuoteText(absl::string_view text);

// Reads the numbers of a numeric feature, and transforms them. Immutable.
class NumberReader {
 public:
  static constexpr int kLog1pEntries = 4096;
  // REQUIRES: `numeric` is of a resolved, valid job
  explicit NumberReader(const Feature::Numeric& numeric, MissingNumbers missing_numbers = {});

  // Returns false if `text` is malformed.
  bool Read(absl::string_view text, float* value) const {
    // Most numbers of click logs have up to three digits.
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
  // These two do the same as Read() does for the number's decimal text. REQUIRES: it is finite
  bool ReadNumber(double number, float* value) const;
  bool ReadInteger(int64_t number, float* value) const {
    const bool is_known = log1p_ != nullptr && number >= 0 && number < kLog1pEntries;
    if (is_known) *value = log1p_[number];
    return is_known || ReadNumber(static_cast<double>(number), value);
  }
  bool has_transforms() const { return !transforms_.empty(); }
  // Returns what is wrong with `text`; "" if nothing is.
  std::string Describe(absl::string_view text) const;

 private:
  bool ReadAny(absl::string_view text, float* value) const;
  bool ReadMissing(float* value) const;
  // Computes in float64. Returns false if the result is not finite as a float32.
  bool Transform(double number, float* value) const;

  MissingNumbers missing_numbers_;
  std::optional<float> missing_;  // The value of a missing number, transformed.
  std::vector<Feature::Numeric::Transform> transforms_;
  // [kLog1pEntries] The values of small integers. null if log1p is not the only transform, or if
  // one of these integers stands for a missing number.
  const float* log1p_ = nullptr;
};

// Reads the keys of a categorical feature. Immutable.
class KeyReader {
 public:
  //   is_by_step: the values of a list are steps: a value without a key is malformed, and an empty
  //     text has no value
  // REQUIRES: `feature` has a column of its own, and is of a resolved, valid job
  explicit KeyReader(const Feature& feature, MissingNumbers missing_numbers = {},
                     bool is_by_step = false);

  // Adds the keys of `text`. Returns false if it is malformed; some may have been added then.
  bool Read(absl::string_view text, KeyBuffer* keys) const {
    return ReadEightHex(text, keys) || ReadAny(text, keys);
  }
  // The same for a text that is one value, such as an element of a list, whatever it contains.
  bool ReadValue(absl::string_view text, KeyBuffer* keys) const {
    return ReadEightHex(text, keys) || AddOne(text, keys);
  }
  // Does what ReadValue() does for the number's decimal text.
  bool ReadInteger(int64_t number, KeyBuffer* keys) const;
  // Removes those keys of a list that its sequence does not keep. The list's keys are those from
  // `begin` on.
  void Shorten(size_t begin, KeyBuffer* keys) const;
  // Whether Read() divides a text into values, and by which character (0: it doesn't).
  bool divides() const { return separator_ != 0; }
  char separator() const { return separator_; }
  // How many values Read() finds in a text.
  size_t CountValues(absl::string_view text) const;
  // Whether a sequence keeps its first values, not its last.
  bool keeps_first() const { return keeps_first_; }
  // Returns what is wrong with `text`; "" if nothing is.
  std::string Describe(absl::string_view text) const;
  std::string DescribeValue(absl::string_view text) const { return DescribeOne(text); }

 private:
  enum class Kind { kString, kInteger, kHex, kBoundaries };
  enum class Result { kKey, kMissing, kMalformed };

  // Adds the key of one of Criteo's ids. Returns false, and adds nothing, if `text` is none.
  bool ReadEightHex(absl::string_view text, KeyBuffer* keys) const {
    Key key;
    if (!is_plain_hex_ || text.size() != 8 || !ParseEightHex(text.data(), &key)) return false;
    keys->Add(key);
    return true;
  }
  bool ReadAny(absl::string_view text, KeyBuffer* keys) const;
  Result ReadOne(absl::string_view text, Key* key) const;
  // The result for a text that is no number or id of this feature.
  Result NoNumber(absl::string_view text) const {
    return missing_numbers_.HasText(text) ? Result::kMissing : Result::kMalformed;
  }
  // Makes the key of an integer of 64 bits.
  //   is_negative: whether `number` is negative, and not an integer of 2^63 or more
  Result IntegerKey(int64_t number, bool is_negative, Key* key) const;
  bool Add(Result result, Key key, KeyBuffer* keys) const;
  bool AddOne(absl::string_view text, KeyBuffer* keys) const;
  std::string DescribeOne(absl::string_view text) const;
  absl::string_view Substring(absl::string_view text) const;

  // The fields that every value needs come first.
  //
  // A text of hexadecimal digits is its key, as a whole: there are no buckets, no substring, and
  // the separator is no digit.
  bool is_plain_hex_ = false;
  char separator_ = 0;  // 0: a text is one value.
  bool keeps_first_ = false;
  bool is_by_step_ = false;
  Kind kind_ = Kind::kString;
  Feature::Categorical::Missing missing_;
  MissingNumbers missing_numbers_;
  uint64_t buckets_;
  size_t start_, length_;
  size_t max_length_ = 0;  // 0: the feature is no sequence.
  std::optional<int64_t> min_;
  std::vector<double> boundaries_;
};

// Returns the key of a combination of several features' keys. It is never kEmptyCategoryKey.
Key CrossKeys(const std::vector<Key>& keys, uint64_t buckets);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_COLUMN_VALUES_H_
