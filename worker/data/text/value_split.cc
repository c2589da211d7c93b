#include "worker/data/text/value_split.h"

#include "worker/data/text/number_text.h"

namespace thermocline {

ValueSplit::ValueSplit(int column, absl::string_view test_from)
    : column_(column), from_(test_from), number_(ParseNumber(test_from)) {}

std::optional<bool> ValueSplit::IsHeldOut(absl::string_view value) const {
  if (!number_.has_value()) return value >= absl::string_view(from_);
  const std::optional<double> number = ParseNumber(value);
  if (!number.has_value()) return std::nullopt;
  return *number >= *number_;
}

}  // namespace thermocline
