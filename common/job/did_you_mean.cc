#include "common/job/did_you_mean.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace thermocline {
namespace {

// Longer inputs are no typos of ours; bounds the quadratic distance.
constexpr size_t kMaxNameLength = 64;

// Levenshtein distance, row by row.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::string Normalize(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", ""}, {"_", ""}});
}

}  // namespace

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kMaxNameLength) return "";
  const std::string wanted = Normalize(name);
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::string have = Normalize(candidate);
    const size_t distance = EditDistance(wanted, have);
    // A third of the letters may differ; a name that contains the other is near as well.
    const bool contains = wanted.size() >= 4 && have.find(wanted) != std::string::npos;
    if (!contains && distance * 3 > std::max(wanted.size(), have.size())) continue;
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" (did you mean '", *best, "'?)");
}

}  // namespace thermocline
