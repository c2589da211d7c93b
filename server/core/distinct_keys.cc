#include "server/core/distinct_keys.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// Memory for larger tables is given back after the check.
constexpr size_t kMaxKeptKeys = size_t{1} << 19;
// How many keys ahead a entry is fetched, where there are too many for the nearest caches.
constexpr size_t kAhead = 16;
constexpr size_t kMinKeysToFetch = 20000;

}  // namespace

absl::Status DistinctKeys::Check(const std::map<uint32_t, wire::PushChunk>& chunks) {
  groups_.clear();
  if (chunks.empty()) return absl::OkStatus();
  for (const auto& [index, chunk] : chunks) {
    for (const wire::PushRange& range : chunk.tables) {
      groups_.push_back({range.table, range.kind, chunk.KeysOf(range)});
    }
  }
  const absl::Status status = CheckGroups(chunks.begin()->second);
  if (seen_.capacity() > kMaxKeptKeys) seen_ = {};
  return status;
}

absl::Status DistinctKeys::CheckGroups(const wire::PushChunk& first) {
  const auto place = [](const Group& group) { return std::tie(group.table, group.kind); };
  std::sort(groups_.begin(), groups_.end(),
            [&](const Group& a, const Group& b) { return place(a) < place(b); });
  for (auto begin = groups_.begin(); begin != groups_.end();) {
    size_t num_keys = 0;
    auto end = begin;
    for (; end != groups_.end() && place(*end) == place(*begin); ++end) {
      num_keys += end->keys.size();
    }
    if (num_keys >= KeyNumbers::kMaxKeys) {
      return absl::OutOfRangeError(absl::StrCat(
          "rank ", first.header.rank.value(), ", step ", first.step.value(), ": the push has ",
          num_keys, " keys of one table; at most ", KeyNumbers::kMaxKeys - 1, " are possible"));
    }
    seen_.Begin(num_keys);
    const size_t ahead = num_keys < kMinKeysToFetch ? num_keys : kAhead;
    for (; begin != end; ++begin) {
      const size_t twice = Insert(TableSalt(begin->table), begin->keys, ahead);
      if (twice == begin->keys.size()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", first.header.rank.value(), ", step ", first.step.value(), ": the push has key ",
          begin->keys[twice], " of table ", begin->table.value(), " twice"));
    }
  }
  return absl::OkStatus();
}

size_t DistinctKeys::Insert(uint64_t table_salt, absl::Span<const Key> keys, size_t ahead) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + ahead < keys.size()) seen_.Prefetch(KeyHash(table_salt, keys[i + ahead]));
    const uint32_t next = seen_.size();
    if (seen_.Add(keys[i], KeyHash(table_salt, keys[i])) != next) return i;
  }
  return keys.size();
}

}  // namespace thermocline
