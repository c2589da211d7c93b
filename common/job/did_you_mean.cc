#include "common/job/did_you_mean.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace thermocline {
namespace {

// Longer inputs are no typos of ours; bounds the quadratic distance.
constexpr size_t kMaxNameLength = 64;

// Edits between two names: insertions, deletions, substitutions and swaps of neighbours.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::move(last);
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
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
