#include "server/core/distinct_keys.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace thermocline {
namespace {

// Memory for larger pushes is given back after the check.
constexpr size_t kMaxKeptSlots = size_t{1} << 20;
// How many keys ahead a slot is fetched.
constexpr size_t kAhead = 16;

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
  for (auto begin = groups_.begin(); begin != groups_.end();) {
    size_t num_keys = 0;
    auto end = begin;
    for (; end != groups_.end() && place(*end) == place(*begin); ++end) {
      num_keys += end->keys.size();
    }
    MakeRoom(num_keys);
    for (; begin != end; ++begin) {
      const size_t twice = Insert(TableSalt(begin->table), begin->keys);
      if (twice == begin->keys.size()) continue;
      const wire::PushPart& part = parts.begin()->second;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", part.header.rank.value(), ", step ", part.step.value(), ": the push has key ",
          begin->keys[twice], " of table ", begin->table.value(), " twice"));
    }
  }
  if (slots_.size() > kMaxKeptSlots) slots_ = {};
  return absl::OkStatus();
}

// At most half of the slots are filled.
void DistinctKeys::MakeRoom(size_t num_keys) {
  size_t num_slots = 16;
  while (num_slots < 2 * num_keys) num_slots *= 2;
  if (slots_.size() < num_slots || stamp_ == std::numeric_limits<uint32_t>::max()) {
    slots_.assign(num_slots, Slot());
    stamp_ = 0;
  }
  mask_ = num_slots - 1;
  ++stamp_;
}

size_t DistinctKeys::Insert(uint64_t table_salt, absl::Span<const Key> keys) {
  Slot* const slots = slots_.data();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      __builtin_prefetch(&slots[KeyHash(table_salt, keys[i + kAhead]) & mask_], /*rw=*/1);
    }
    uint64_t at = KeyHash(table_salt, keys[i]) & mask_;
    for (; slots[at].stamp == stamp_; at = (at + 1) & mask_) {
      if (slots[at].key == keys[i]) return i;
    }
    slots[at] = {keys[i], stamp_};
  }
  return keys.size();
}

}  // namespace thermocline
