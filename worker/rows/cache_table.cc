#include "worker/rows/cache_table.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "worker/rows/cache_rows.h"

namespace thermocline {
namespace {

// Entries are prefetched so many keys ahead.
constexpr int32_t kEntriesAhead = 16;

// Fills `keys` from the front, without a check of the room at every key.
class Appender {
 public:
  Appender(int32_t most, uint32_t num_servers, CachedKeys* keys) : to_(keys) {
    to_->keys.resize(most);
    to_->rows.resize(most);
    to_->server_begin.assign(num_servers + 1, 0);
  }
  void Add(Key key, int32_t row) {
    to_->keys[size_] = key;
    to_->rows[size_] = row;
    ++size_;
  }
  void EndServer(uint32_t server) { to_->server_begin[server + 1] = size_; }
  void End() {
    to_->keys.resize(size_);
    to_->rows.resize(size_);
  }
  int32_t size() const { return size_; }

 private:
  CachedKeys* const to_;
  int32_t size_ = 0;
};

// Writes to the front of a vector that has room for one element more than can be kept: an element
// that is not kept is overwritten by the next.
template <typename T>
class Filter {
 public:
  Filter(size_t most, UninitializedVector<T>* to) : to_(to) {
    to_->resize(most + 1);
    next_ = to_->data();
  }
  void Add(const T& value, int keep) {
    *next_ = value;
    next_ += keep;
  }
  void End() { to_->resize(next_ - to_->data()); }

 private:
  UninitializedVector<T>* const to_;
  T* next_;
};

}  // namespace

CacheTable::CacheTable(TableId table, const ClusterMap& cluster_map, bool keeps_rows)
    : salt_(TableSalt(table)),
      keeps_rows_(keeps_rows),
      cluster_map_(cluster_map),
      directory_(salt_) {}

void CacheTable::Admit(int32_t step, absl::Span<const Key> keys, TableCachePlan* to) {
  to->entries.resize(keys.size());
  directory_.FindOrAdd(keys, to->entries.data());
  Filter<int32_t> needed(keys.size(), &needed_);
  for (const int32_t number : to->entries) {
    CacheEntry& entry = directory_[number];
    entry.last_use = step;
    entry.uses += entry.uses < CacheRows::kMaxFrequency ? 1 : 0;
    needed.Add(entry.row, entry.row != kNoRow);
  }
  needed.End();
}

// A branch on whether a key is in the cache, or is used later, would be mispredicted: there is
// none.
void CacheTable::FindMisses(int32_t step, const KeyShares& keys, TableCachePlan* to) {
  const int32_t n = keys.size();
  CHECK_EQ(to->entries.size(), keys.keys.size());
  to->rows.resize(n);
  int32_t* const rows = to->rows.data();
  const int32_t* const entries = to->entries.data();
  Filter<int32_t> misses(n, &misses_), released(n, &released_);
  for (int32_t u = 0; u < n; ++u) {
    directory_.Prefetch(entries[std::min(u + kEntriesAhead, n - 1)]);
    const CacheEntry& entry = directory_[entries[u]];
    const int32_t row = entry.row;
    const int is_cached = row != kNoRow;
    const int is_used_later = entry.last_use > step;
    rows[u] = row;
    misses.Add(u, 1 - is_cached);
    released.Add(row, is_cached & (1 - is_used_later));
  }
  misses.End();
  released.End();
  victims_.clear();
  FindWanted(step, *to);
}

void CacheTable::FindWanted(int32_t step, const TableCachePlan& to) {
  last_push_ = -1;
  Filter<Wanted> wanted(misses_.size(), &wanted_);
  Filter<int32_t> dropped(misses_.size(), &dropped_);
  for (const int32_t u : misses_) {
    CacheEntry& entry = directory_[to.entries[u]];
    const int is_used_later = entry.last_use > step;
    last_push_ = std::max(last_push_, entry.step);
    wanted.Add({u, to.entries[u], entry.uses}, is_used_later | static_cast<int>(keeps_rows_));
    dropped.Add(to.entries[u], (1 - is_used_later) & (1 - keeps_rows_));
    entry.step = step;
  }
  wanted.End();
  dropped.End();
  given_.assign(wanted_.size(), kNoRow);
}

int32_t CacheTable::num_bypassed() const {
  const auto given = given_.size() - std::count(given_.begin(), given_.end(), kNoRow);
  return static_cast<int32_t>(misses_.size() - given);
}

void CacheTable::Fill(const KeyShares& keys, int32_t first_staged, TableCachePlan* to) {
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (given_[i] == kNoRow) continue;
    directory_[wanted_[i].entry].row = given_[i];
    to->rows[wanted_[i].u] = given_[i];
  }
  const uint32_t num_servers = cluster_map_.num_servers();
  const auto num_misses = static_cast<int32_t>(misses_.size());
  to->bypassed_positions.resize(num_misses);
  Appender loaded(num_misses, num_servers, &to->loaded);
  Appender bypassed(num_misses, num_servers, &to->bypassed);
  const int32_t* miss = misses_.data();
  const int32_t* const end = miss + num_misses;
  for (uint32_t s = 0; s < num_servers; ++s) {
    for (; miss != end && *miss < keys.server_begin[s + 1]; ++miss) {
      const int32_t u = *miss;
      if (to->rows[u] != kNoRow) {
        loaded.Add(keys.keys[u], to->rows[u]);
      } else {
        to->rows[u] = first_staged + bypassed.size();
        to->bypassed_positions[bypassed.size()] = u;
        bypassed.Add(keys.keys[u], to->rows[u]);
      }
    }
    loaded.EndServer(s);
    bypassed.EndServer(s);
  }
  loaded.End();
  bypassed.End();
  to->bypassed_positions.resize(bypassed.size());
  ListEvicted(&to->evicted);
  for (const Victim& victim : victims_) dropped_.push_back(victim.entry);
  directory_.Remove(dropped_);
}

// By server; the keys of one server in the order in which they lost their rows.
void CacheTable::ListEvicted(CachedKeys* evicted) {
  const uint32_t num_servers = cluster_map_.num_servers();
  const size_t n = victims_.size();
  std::vector<int32_t>& begin = evicted->server_begin;
  begin.assign(num_servers + 1, 0);
  servers_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const Key key = directory_[victims_[i].entry].key;
    servers_[i] = cluster_map_.ServerOfHash(KeyHash(salt_, key)).value();
    ++begin[servers_[i] + 1];
  }
  for (uint32_t s = 0; s < num_servers; ++s) begin[s + 1] += begin[s];
  next_of_server_.assign(begin.begin(), begin.end() - 1);
  evicted->keys.resize(n);
  evicted->rows.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const int32_t position = next_of_server_[servers_[i]]++;
    evicted->keys[position] = directory_[victims_[i].entry].key;
    evicted->rows[position] = victims_[i].row;
  }
}

}  // namespace thermocline
