// What the values of one column are: their type, and figures of their distribution. In one pass, in
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

// Batch sizes for which inspection says how many distinct keys a batch has.
inline const std::vector<double> kInspectedBatches = {256, 1024, 4096, 16384, 65536};

// Moments of numbers, as they come (Pebay, "Formulas for robust, one-pass parallel computation of
// covariances and arbitrary-order statistical moments", 2008).
struct Moments {
  uint64_t count = 0;
  double mean = 0, sum2 = 0, sum3 = 0;  // Sums of powers of the distances from the mean.

  void Add(double value);
  double Std() const;
  double Skewness() const;
};

// Of `max_keys` over all columns, those that each may count; within bounds.
size_t KeysOfColumn(size_t max_keys, size_t columns);

// Not thread-safe. Neighbours may be used by different threads: none has a cache line of another.
class alignas(64) ColumnScan {
 public:
  // Between the values of a list that the file itself has as one.
  static constexpr char kOfLists = '\x1f';

  // separator: between the values of a list; 0: a column of single values.
  ColumnScan(std::string name, char separator, size_t max_keys)
      : name_(std::move(name)), separator_(separator), keys_(max_keys) {}

  // Figures() says how often each of `texts` occurs. REQUIRES: nothing was added yet
  void Count(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) counted_[text] = 0;
  }

  void AddText(absl::string_view text);
  // For columns of files whose types are known.
  void AddNumber(double value);
  void AddKeys(absl::Span<const Key> keys);

  // The object that `inspect --json` has for a column (docs/own-log.md).
  nlohmann::ordered_json Figures() const;

 private:
  void NoteText(std::pair<const std::string, uint64_t>* text);
  uint64_t NumMissingTexts() const;
  // One text, or one value of a list.
  void AddValue(absl::string_view value);
  void AddTime(absl::string_view value);
  void AddNumeric(double number);
  bool AllAre(uint64_t count) const { return values_ > 0 && count == values_; }
  // The type and why.
  std::pair<std::string, std::string> Type() const;
  nlohmann::ordered_json NumberFigures() const;
  nlohmann::ordered_json TimeFigures(const TimeForm& form) const;

  const std::string name_;
  const char separator_;
  KeyCounts keys_;

  uint64_t rows_ = 0;
  uint64_t missing_ = 0;
  uint64_t values_ = 0;  // Not missing; of lists, those in them.
  uint64_t longest_list_ = 0;
  uint64_t text_bytes_ = 0;
  bool is_typed_ = false;  // By AddNumber or AddKeys.

  // So many values are ...
  uint64_t integers_ = 0;
  uint64_t numbers_ = 0;
  uint64_t hex_ = 0;
  uint64_t with_letters_ = 0;                 // Among the hexadecimal ones.
  size_t shortest_ = SIZE_MAX, longest_ = 0;  // Bytes.

  // Of numbers.
  Moments moments_, log_moments_;
  double min_ = 0, max_ = 0;
  uint64_t negatives_ = 0;
  uint64_t small_ = 0;  // 0 .. 9
  uint64_t whole_ = 0;  // Without a fraction.

  // Forms of time that all values so far have, and the times by the first of them.
  std::vector<const TimeForm*> times_ = AllTimeForms();
  int64_t first_time_ = 0, last_time_ = 0, previous_time_ = 0;
  uint64_t descents_ = 0;
  // An even sample of the times and their texts.
  std::vector<std::pair<int64_t, std::string>> time_sample_;
  uint64_t time_draws_ = 0;

  std::map<std::string, uint64_t, std::less<>> texts_;  // As long as they are few.
  bool has_many_texts_ = false;
  const std::pair<const std::string, uint64_t>* last_text_ = nullptr;  // Of texts_.
  uint64_t text_changes_ = 0;  // Rows whose text is another than that of the row before.
  // Those that stand for a missing number, which are values like others if the column is text.
  std::map<std::string, uint64_t, std::less<>> missing_texts_;
  std::map<std::string, uint64_t, std::less<>> counted_;  // What Count() named.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_COLUMN_SCAN_H_
