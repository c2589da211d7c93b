#include "server/core/distinct_keys.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// Memory for larger tables is given back after the check.
constexpr size_t kMaxKeptKeys = size_t{1} << 19;
// How many keys ahead a slot is fetched, where there are too many for the nearest caches.
constexpr size_t kAhead = 16;
constexpr size_t kMinKeysToFetch = 20000;

}  // namespace

absl::Status DistinctKeys::Check(const std::map<uint32_t, wire::PushPart>& parts) {
  groups_.clear();
  for (const auto& [index, part] : parts) {
    for (const wire::PushRange& range : part.tables) {
      groups_.push_back({range.table, range.kind, part.KeysOf(range)});
    }
  }
  const auto place = [](const Group& group) { return std::tie(group.table, group.kind); };
  std::sort(groups_.begin(), groups_.end(),
            [&](const Group& a, const Group& b) { return place(a) < place(b); });
  size_t most_keys = 0;
  for (auto begin = groups_.begin(); begin != groups_.end();) {
    size_t num_keys = 0;
    auto end = begin;
    for (; end != groups_.end() && place(*end) == place(*begin); ++end) {
      num_keys += end->keys.size();
    }
    seen_.Begin(num_keys);
    most_keys = std::max(most_keys, num_keys);
    for (; begin != end; ++begin) {
      const size_t twice = Insert(TableSalt(begin->table), begin->keys);
      if (twice == begin->keys.size()) continue;
      const wire::PushPart& part = parts.begin()->second;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", part.header.rank.value(), ", step ", part.step.value(), ": the push has key ",
          begin->keys[twice], " of table ", begin->table.value(), " twice"));
    }
  }
  if (most_keys > kMaxKeptKeys) seen_ = {};
  return absl::OkStatus();
}

size_t DistinctKeys::Insert(uint64_t table_salt, absl::Span<const Key> keys) {
  const size_t ahead = keys.size() < kMinKeysToFetch ? keys.size() : kAhead;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + ahead < keys.size()) seen_.Prefetch(KeyHash(table_salt, keys[i + ahead]));
    const uint32_t next = seen_.size();
    if (seen_.Add(keys[i], KeyHash(table_salt, keys[i])) != next) return i;
  }
  return keys.size();
}

}  // namespace thermocline
