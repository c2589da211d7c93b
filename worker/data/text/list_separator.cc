#include "worker/data/text/list_separator.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "worker/data/text/number_text.h"

namespace thermocline {
namespace {

constexpr char kCandidates[] = {'|', ';', ',', '^', '~', ' '};
// In a list column at least this share of the texts has more than one value.
constexpr double kMinLists = 0.1;

bool IsListOf(absl::string_view text, char separator, bool* has_several) {
  const std::vector<absl::string_view> values = absl::StrSplit(text, separator);
  *has_several = values.size() > 1;
  return std::all_of(values.begin(), values.end(), [&](absl::string_view value) {
    if (value.empty() || absl::ascii_isspace(value.front()) || absl::ascii_isspace(value.back())) {
      return false;
    }
    // Words in a row are a sentence; numbers are ids.
    return separator != ' ' || ParseNumber(value).has_value();
  });
}

}  // namespace

char GuessListSeparator(absl::Span<const absl::string_view> texts, char of_columns) {
  for (const char separator : kCandidates) {
    if (separator == of_columns) continue;
    size_t values = 0, lists = 0;
    bool fits = true;
    for (size_t i = 0; i < texts.size() && fits; ++i) {
      if (texts[i].empty()) continue;
      bool has_several = false;
      fits = IsListOf(texts[i], separator, &has_several);
      ++values;
      lists += has_several ? 1 : 0;
    }
    if (fits && lists > 0 &&
        static_cast<double>(lists) >= kMinLists * static_cast<double>(values)) {
      return separator;
    }
  }
  return 0;
}

}  // namespace thermocline
