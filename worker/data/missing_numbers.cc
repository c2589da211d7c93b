#include "worker/data/missing_numbers.h"

#include <algorithm>
#include <optional>

#include "worker/data/text/number_text.h"

namespace thermocline {

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
