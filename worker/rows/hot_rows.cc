#include "worker/rows/hot_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Buckets are prefetched so many keys ahead.
constexpr size_t kHotKeysAhead = 16;

}  // namespace

HotRows::HotRows(const JobTables& tables, const HotSet& hot_set)
    : tables_(tables.sparse), hot_set_(hot_set), places_(tables.sparse.size()) {
  CHECK_EQ(hot_set.tables.size(), tables_.size());
}

absl::StatusOr<std::unique_ptr<HotRows>> HotRows::Make(const JobTables& tables,
                                                       const HotSet& hot_set, uint64_t budget_bytes,
                                                       const std::string& field) {
  std::unique_ptr<HotRows> rows(new HotRows(tables, hot_set));
  rows->layout_.budget_bytes = budget_bytes;
  rows->layout_.groups = GroupTables(tables);
  for (CacheGroupLayout& group : rows->layout_.groups) {
    int64_t num_rows = 0;
    for (const int32_t t : group.tables) {
      const size_t of_table = hot_set.tables[t].size();
      if (!group.holds_rows && of_table > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("table '", tables.sparse[t].name, "' has ", of_table,
                         " hot rows, but only the servers can decide which of its keys have a "
                         "row (min_count, eviction)"));
      }
      rows->places_[t].first_row = static_cast<int32_t>(num_rows);
      num_rows += static_cast<int64_t>(of_table);
      if (num_rows > kMaxCacheCapacity) {
        return absl::InvalidArgumentError(absl::StrCat(
            field, ": ", num_rows, " hot rows and more in tables like '",
            tables.sparse[group.tables.front()].name, "'; at most ", kMaxCacheCapacity, " can be"));
      }
    }
    group.capacity = static_cast<int32_t>(num_rows);
  }
  RETURN_IF_ERROR(rows->CheckBudget(field));
  for (size_t t = 0; t < rows->places_.size(); ++t) rows->Index(t);
  return rows;
}

absl::Status HotRows::CheckBudget(const std::string& field) const {
  if (layout_.capacity_bytes() <= layout_.budget_bytes) return absl::OkStatus();
  std::string message =
      absl::StrCat(field, " is ", layout_.budget_bytes, " bytes; the ", layout_.capacity_rows(),
                   " hot rows take ", layout_.capacity_bytes(), ":");
  for (const CacheGroupLayout& group : layout_.groups) {
    absl::StrAppend(&message, &group == &layout_.groups.front() ? " " : ", ", group.capacity,
                    " rows of ", group.row_bytes(), " bytes for ", group.tables.size(), " table",
                    group.tables.size() == 1 ? "" : "s", " like '",
                    tables_[group.tables.front()].name, "'");
  }
  return absl::InvalidArgumentError(message);
}

void HotRows::Index(size_t t) {
  Place& place = places_[t];
  const std::vector<Key>& of_table = keys(t);
  size_t num_buckets = 1;
  while (num_buckets < 2 * of_table.size()) num_buckets *= 2;
  place.salt = TableSalt(tables_[t].id);
  place.mask = num_buckets - 1;
  place.buckets.assign(num_buckets, 0);
  for (size_t i = 0; i < of_table.size(); ++i) {
    uint64_t at = KeyHash(place.salt, of_table[i]) & place.mask;
    while (place.buckets[at] != 0) at = (at + 1) & place.mask;
    place.buckets[at] = static_cast<uint32_t>(i + 1);
  }
}

int32_t HotRows::FindHashed(size_t t, Key key, uint64_t hash) const {
  const Place& place = places_[t];
  const Key* const of_table = keys(t).data();
  uint64_t at = hash & place.mask;
  for (; place.buckets[at] != 0; at = (at + 1) & place.mask) {
    const uint32_t i = place.buckets[at] - 1;
    if (of_table[i] == key) return place.first_row + static_cast<int32_t>(i);
  }
  return kNoRow;
}

int32_t HotRows::Find(size_t t, Key key) const {
  return FindHashed(t, key, KeyHash(places_[t].salt, key));
}

size_t HotRows::FindAll(size_t t, absl::Span<const Key> keys, absl::Span<int32_t> rows) const {
  const Place& place = places_[t];
  size_t num_hot = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Key ahead = keys[std::min(i + kHotKeysAhead, keys.size() - 1)];
    __builtin_prefetch(&place.buckets[KeyHash(place.salt, ahead) & place.mask]);
    rows[i] = FindHashed(t, keys[i], KeyHash(place.salt, keys[i]));
    num_hot += rows[i] != kNoRow ? 1 : 0;
  }
  return num_hot;
}

absl::Status HotRows::CheckWriteBack(const ClusterMap& servers, uint64_t room_bytes,
                                     uint64_t dense_bytes, const std::string& field) const {
  std::vector<uint64_t> bytes(servers.num_servers());
  for (size_t t = 0; t < tables_.size(); ++t) {
    const uint64_t row_bytes =
        sizeof(Key) + sizeof(uint32_t) + sizeof(float) * tables_[t].row_floats();
    for (const Key key : keys(t)) {
      bytes[servers.ServerOfHash(KeyHash(places_[t].salt, key)).value()] += row_bytes;
    }
  }
  const auto most = std::max_element(bytes.begin(), bytes.end());
  if (dense_bytes <= room_bytes && *most <= room_bytes - dense_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": of the hot rows, server ", most - bytes.begin(), " gets ", *most,
                   " bytes when they are written back, and up to ", dense_bytes,
                   " of dense parameters; cluster.max_pending_size is ", room_bytes,
                   ". Raise it, use more servers, or give hot rows a smaller budget"));
}

}  // namespace thermocline
