// Which rows a value of a column holds out (data.split.column).
#ifndef THERMOCLINE_WORKER_DATA_TEXT_VALUE_SPLIT_H_
#define THERMOCLINE_WORKER_DATA_TEXT_VALUE_SPLIT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace thermocline {

// Immutable.
class ValueSplit {
 public:
  ValueSplit(int column, absl::string_view test_from);

  int column() const { return column_; }
  // Empty: the value is not a number, and has to be.
  std::optional<bool> IsHeldOut(absl::string_view value) const;

 private:
  int column_;
  std::string from_;
  std::optional<double> number_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_VALUE_SPLIT_H_
