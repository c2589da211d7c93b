// Finds the type of one column's values, and figures of their distribution, in one pass and in
// bounded memory.
#ifndef THERMOCLINE_WORKER_INSPECT_COLUMN_SCAN_H_
#define THERMOCLINE_WORKER_INSPECT_COLUMN_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/inspect/key_counts.h"
#include "worker/inspect/time_forms.h"

namespace thermocline {

// For these batch sizes inspection estimates how many distinct keys a batch has.
inline const std::vector<double> kInspectedBatches = {256, 1024, 4096, 16384, 65536};

// Computes moments of numbers in one pass (Pebay, "Formulas for robust, one-pass parallel
// computation of covariances and arbitrary-order statistical moments", 2008).
struct Moments {
  uint64_t count = 0;
  double mean = 0, sum2 = 0, sum3 = 0;  // Sums of powers of the distances from the mean.

  void Add(double value);
  double Std() const;
  double Skewness() const;
};

// Returns how many keys each column may count, if all columns together may count `max_keys`; within
// bounds.
size_t KeysOfColumn(size_t max_keys, size_t columns);

// Not thread-safe. Different threads may use neighbours in memory, since they share no cache line.
class alignas(64) ColumnScan {
 public:
  // The separator for a column that is a list in the file itself.
  static constexpr char kOfLists = '\x1f';

  //   separator: the character between the values of a list; 0: a column of single values
  ColumnScan(std::string name, char separator, size_t max_keys)
      : name_(std::move(name)), separator_(separator), keys_(max_keys) {}

  // Makes Figures() say how often each of `texts` occurs. REQUIRES: nothing was added yet
  void Count(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) counted_[text] = 0;
  }

  void AddText(absl::string_view text);
  // These are for columns whose type the file says.
  void AddNumber(double value);
  void AddKeys(absl::Span<const Key> keys);

  // Returns the object that `inspect --json` has for a column (docs/own-log.md).
  nlohmann::ordered_json Figures() const;

 private:
  void NoteText(std::pair<const std::string, uint64_t>* text);
  uint64_t NumMissingTexts() const;
  // Adds one text, or one value of a list.
  void AddValue(absl::string_view value);
  void AddTime(absl::string_view value);
  void AddNumeric(double number);
  bool AllAre(uint64_t count) const { return values_ > 0 && count == values_; }
  // Returns the type, and why it is that.
  std::pair<std::string, std::string> Type() const;
  nlohmann::ordered_json NumberFigures() const;
  nlohmann::ordered_json TimeFigures(const TimeForm& form) const;

  const std::string name_;
  const char separator_;
  KeyCounts keys_;

  uint64_t rows_ = 0;
  uint64_t missing_ = 0;
  uint64_t values_ = 0;  // Values that are not missing; a list may have several.
  uint64_t longest_list_ = 0;
  uint64_t text_bytes_ = 0;
  bool is_typed_ = false;  // AddNumber or AddKeys was called.

  // How many values are integers, numbers and so on.
  uint64_t integers_ = 0;
  uint64_t numbers_ = 0;
  uint64_t hex_ = 0;
  uint64_t with_letters_ = 0;                 // Hexadecimal values with a letter.
  size_t shortest_ = SIZE_MAX, longest_ = 0;  // In bytes.

  // Figures of the numbers.
  Moments moments_, log_moments_;
  double min_ = 0, max_ = 0;
  uint64_t negatives_ = 0;
  uint64_t small_ = 0;  // Numbers in 0 .. 9.
  uint64_t whole_ = 0;  // Numbers without a fraction.

  // The forms of time that all values so far have, and the times in the first of these forms.
  std::vector<const TimeForm*> times_ = AllTimeForms();
  int64_t first_time_ = 0, last_time_ = 0, previous_time_ = 0;
  uint64_t descents_ = 0;
  // An even sample of the times and their texts.
  std::vector<std::pair<int64_t, std::string>> time_sample_;
  uint64_t time_draws_ = 0;

  std::map<std::string, uint64_t, std::less<>> texts_;  // Counts of texts, while they are few.
  bool has_many_texts_ = false;
  const std::pair<const std::string, uint64_t>* last_text_ = nullptr;  // In texts_.
  uint64_t text_changes_ = 0;  // Rows whose text differs from that of the row before.
  // Texts that stand for a missing number. If the column is text, they are values like others.
  std::map<std::string, uint64_t, std::less<>> missing_texts_;
  std::map<std::string, uint64_t, std::less<>> counted_;  // The texts of Count().
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_COLUMN_SCAN_H_
