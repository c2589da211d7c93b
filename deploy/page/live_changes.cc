#include "deploy/page/live_changes.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "deploy/page/page_html.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSeries[] = {"progress", "workers_series"};
// Longer ones are none of ours.
constexpr size_t kMaxCursorBytes = 4096;

bool IsSeries(const std::string& name) { return name == kSeries[0] || name == kSeries[1]; }

// "LINES_PER_POINT-WHOLE_POINTS"; the last point may get more lines.
std::string PlaceOf(const Json& series) {
  if (!series.is_object()) return "0-0";
  const size_t points = series["step"].size();
  return absl::StrCat(series["lines_per_point"].get<uint64_t>(), "-", points > 0 ? points - 1 : 0);
}

struct Place {
  uint64_t lines_per_point = 0, points = 0;
};
std::optional<Place> ParsePlace(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  Place place;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &place.lines_per_point) ||
      !absl::SimpleAtoi(parts[1], &place.points)) {
    return std::nullopt;
  }
  return place;
}

// The columns of a series from a point on, also those by figure.
Json TailOf(const Json& series, uint64_t from) {
  Json tail = {{"from", from}};
  for (const auto& [name, part] : series.items()) {
    if (part.is_array()) {
      tail[name] = Json(part.begin() + static_cast<int64_t>(from), part.end());
    } else if (part.is_object()) {
      tail[name] = Json::object();
      for (const auto& [figure, column] : part.items()) {
        tail[name][figure] = Json::array();
        for (uint64_t i = from; i < column.size(); ++i) tail[name][figure].push_back(column[i]);
      }
    }
  }
  return tail;
}

}  // namespace

std::string CursorOf(const Json& run, uint64_t drops) {
  std::vector<std::string> checksums;
  for (const auto& [name, value] : run.items()) {
    if (IsSeries(name)) continue;
    const std::string text = DumpJson(value);
    checksums.push_back(absl::StrCat(absl::Hex(Crc32c(text.data(), text.size()))));
  }
  return absl::StrCat(drops, "_", PlaceOf(run[kSeries[0]]), "_", PlaceOf(run[kSeries[1]]), "_",
                      absl::StrJoin(checksums, "."));
}

std::optional<Json> ChangesSince(absl::string_view cursor, absl::string_view now, const Json& run) {
  if (cursor.size() > kMaxCursorBytes) return std::nullopt;
  const std::vector<absl::string_view> had = absl::StrSplit(cursor, '_');
  const std::vector<absl::string_view> has = absl::StrSplit(now, '_');
  if (had.size() != has.size() || had[0] != has[0]) return std::nullopt;
  const std::vector<absl::string_view> sums_had = absl::StrSplit(had[3], '.');
  const std::vector<absl::string_view> sums_has = absl::StrSplit(has[3], '.');
  if (sums_had.size() != sums_has.size()) return std::nullopt;
  Json changes = Json::object();
  for (int i = 0; i < 2; ++i) {
    const auto before = ParsePlace(had[i + 1]), after = ParsePlace(has[i + 1]);
    if (!before || before->lines_per_point != after->lines_per_point ||
        before->points > after->points) {
      return std::nullopt;
    }
    const Json& series = run[kSeries[i]];
    if (!series.is_object()) continue;
    changes[absl::StrCat(kSeries[i], "_tail")] = TailOf(series, before->points);
  }
  size_t field = 0;
  for (const auto& [name, value] : run.items()) {
    if (IsSeries(name)) continue;
    if (sums_had[field] != sums_has[field]) changes[name] = value;
    ++field;
  }
  return changes;
}

}  // namespace thermocline
