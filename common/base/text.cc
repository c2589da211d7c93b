#include "common/base/text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace thermocline {
namespace {

constexpr std::pair<absl::string_view, int> kUnits[] = {
    {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};

// Bounds the quadratic distance; no name of ours is longer.
constexpr size_t kMaxNameLength = 64;

// The number of edits between two names: insertions, deletions, substitutions and swaps of
// neighbours.
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

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  for (const auto& [unit, shift] : kUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    uint64_t value = 0;
    const bool digits = number.find_first_not_of("0123456789") == absl::string_view::npos;
    if (!digits || !absl::SimpleAtoi(number, &value)) break;
    if (value >> (63 - shift) != 0) {
      return absl::InvalidArgumentError("a size is less than 8192 PiB");
    }
    return value << shift;
  }
  return absl::InvalidArgumentError(
      "a size is a whole number and its unit, B, KiB, MiB, GiB or TiB, such as \"512MiB\"");
}

bool IsUtf8(absl::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  while (at < end) {
    const unsigned char first = *at++;
    if (first < 0x80) continue;
    const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || end - at < more) return false;
    // What the second byte may be, where it decides whether the form is the shortest, or too large.
    const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (*at < least || *at > most) return false;
    for (int i = 1; i < more; ++i) {
      if ((at[i] & 0xc0) != 0x80) return false;
    }
    at += more;
  }
  return true;
}

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
