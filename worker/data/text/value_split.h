// Decides by the value of a column which rows are held out (data.split.column).
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
  // nullopt: the value is not a number, though test_from is one; the row is malformed.
  std::optional<bool> IsHeldOut(absl::string_view value) const;

 private:
  int column_;
  std::string from_;
  std::optional<double> number_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_VALUE_SPLIT_H_
