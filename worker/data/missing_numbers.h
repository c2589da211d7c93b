// Knows the texts that stand for a missing number, such as "NULL".
#ifndef THERMOCLINE_WORKER_DATA_MISSING_NUMBERS_H_
#define THERMOCLINE_WORKER_DATA_MISSING_NUMBERS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

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

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_MISSING_NUMBERS_H_
