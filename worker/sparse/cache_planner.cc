#include "worker/sparse/cache_planner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/hash.h"
#include "worker/sparse/cache_directory.h"
#include "worker/sparse/cache_rows.h"

namespace thermocline {
namespace {

// Entries are prefetched so many keys ahead.
constexpr int32_t kKeysAhead = 16;

constexpr uint32_t UseBit(int64_t step) { return uint32_t{1} << (step % 32); }

// Bits of the `count` steps that follow `step`.
uint32_t UseBitsBehind(int64_t step, int count) {
  uint32_t bits = 0;
  for (int i = 1; i <= std::min(count, 31); ++i) bits |= UseBit(step + i);
  return bits;
}

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

void Clear(CachedKeys* keys) {
  keys->keys.clear();
  keys->rows.clear();
}

}  // namespace

struct CachePlanner::Group {
  Group(const CachePlannerOptions::Group& options, const std::vector<uint64_t>& salts)
      : tables(options.tables), directory(salts), rows(options.capacity) {}

  // A row for the key of a miss, or kNoRow.
  int32_t Load(int32_t number, CacheEntry* entry) {
    int32_t victim;
    entry->row = rows.Take(number, entry->uses, &victim);
    if (entry->row != kNoRow && victim >= 0) {
      directory.Prefetch(victim);
      victims.push_back({victim, entry->row});
    }
    return entry->row;
  }

  const std::vector<int32_t> tables;
  CacheDirectory directory;
  CacheRows rows;

  // Of the step at hand.
  struct Victim {
    int32_t entry;
    int32_t row;
  };
  std::vector<Victim> victims;
  UninitializedVector<int32_t> misses;    // of the table at hand: u of each, old copies among them
  UninitializedVector<int32_t> released;  // rows of keys with no later use
  std::vector<int32_t> dropped;           // entries of keys with no row and no later use
  int32_t num_staged = 0;
  uint32_t worthwhile_uses = 0;  // kCopies: bits of the steps that may read what this one loads
};

CachePlanner::CachePlanner(CachePlannerOptions options, const ClusterMap& cluster_map,
                           const std::vector<TableId>& tables)
    : options_(std::move(options)), cluster_map_(cluster_map) {
  CHECK_GE(options_.window_steps, 0);
  CHECK_GE(options_.copy_steps, 0);
  for (TableId table : tables) salts_.push_back(TableSalt(table));
  std::vector<int> groups_of(tables.size(), 0);
  for (const CachePlannerOptions::Group& group : options_.groups) {
    for (int32_t table : group.tables) {
      CHECK_LT(static_cast<size_t>(table), tables.size());
      ++groups_of[table];
    }
    groups_.push_back(std::make_unique<Group>(group, salts_));
  }
  for (int groups : groups_of) CHECK_EQ(groups, 1);
}

CachePlanner::~CachePlanner() = default;

void CachePlanner::Admit(Step step, const BatchPlan& plan, CachePlan* cache) {
  CHECK_EQ(plan.tables.size(), salts_.size());
  CHECK_LT(step.value(), int64_t{std::numeric_limits<int32_t>::max()});
  if (first_step_ < 0) {
    first_step_ = step.value();
    step_ = step.value() - 1;
  } else {
    CHECK_EQ(step.value(), admitted_ + 1);
  }
  admitted_ = step.value();
  const int32_t now = static_cast<int32_t>(admitted_);
  const uint32_t use = UseBit(admitted_);
  cache->tables.resize(plan.tables.size());
  for (const std::unique_ptr<Group>& group : groups_) {
    CacheDirectory& directory = group->directory;
    CacheRows& rows = group->rows;
    for (int32_t t : group->tables) {
      const UninitializedVector<Key>& keys = plan.tables[t].keys;
      UninitializedVector<int32_t>& entries = cache->tables[t].entries;
      entries.resize(keys.size());
      directory.FindOrAdd(t, keys, entries.data());
      for (int32_t number : entries) {
        CacheEntry& entry = directory[number];
        entry.last_use = now;
        entry.coming_uses |= use;
        entry.uses += entry.uses < CacheRows::kMaxFrequency ? 1 : 0;
        rows.Need(entry.row);
      }
    }
  }
}

// Why step - window_steps - 1 bounds the last push of every key that is pulled at `step` and whose
// entry knows of none. Only earlier steps have pushed, and what they push of a key is the gradient
// at a step q that bypassed the cache with it, or the row at a step q whose plan evicted it.
// - Bypassed at q, and used again by a step admitted then: the entry stays up to that use, with q.
// - Bypassed at q, and not used again by a step admitted then, q + window_steps or later ones: so
//   step > q + window_steps.
// - Evicted at q: not used by those steps either. The entry goes with the row; no push before that
//   matters, as q was later.
// What was pushed before the first step admitted is none of this planner's.
void CachePlanner::Plan(Step step, const BatchPlan& plan, CachePlan* cache) {
  CHECK_EQ(step.value(), step_ + 1);
  CHECK_LE(step.value(), admitted_);
  CHECK_EQ(cache->tables.size(), plan.tables.size());
  step_ = step.value();
  cache->counts = CacheCounts();
  cache->pushed_through = kNoStep;
  if (options_.mode == CachePlannerOptions::Mode::kOwned) {
    const Step before_window = step - options_.window_steps - 1;
    if (before_window.value() >= first_step_) cache->pushed_through = before_window;
  }
  for (const std::unique_ptr<Group>& group : groups_) PlanGroup(plan, group.get(), cache);
}

void CachePlanner::PlanGroup(const BatchPlan& plan, Group* group, CachePlan* cache) {
  group->victims.clear();
  group->dropped.clear();
  group->released.clear();
  group->num_staged = 0;
  group->worthwhile_uses =
      UseBitsBehind(step_, std::min(options_.window_steps, options_.copy_steps));
  for (int32_t t : group->tables) {
    PlanTable(plan.tables[t], group, &cache->tables[t], cache);
  }
  // Rows that this step uses are needed up to here, and entries keep their numbers.
  GiveUpVictims(group, cache);
  group->directory.Remove(group->dropped);
  for (int32_t row : group->released) group->rows.Release(row);
  cache->counts.rows_held += group->rows.num_held();
}

// Whether a key is in the cache, and used later, is anybody's guess, so the first loop has no
// branch for it: every key is written down as a miss, and the next one over it if it is none.
void CachePlanner::FindMisses(const TablePlan& table, Group* group, TableCachePlan* to) {
  const int32_t n = table.num_unique();
  CHECK_EQ(to->entries.size(), table.keys.size());
  const int32_t now = static_cast<int32_t>(step_);
  const int32_t oldest_copy = options_.mode == CachePlannerOptions::Mode::kOwned
                                  ? std::numeric_limits<int32_t>::max()
                                  : options_.copy_steps;
  to->rows.resize(n);
  group->misses.resize(n + 1);
  const size_t released_before = group->released.size();
  group->released.resize(released_before + n + 1);
  int32_t* const rows = to->rows.data();
  const int32_t* const entries = to->entries.data();
  int32_t* miss = group->misses.data();
  int32_t* released = group->released.data() + released_before;
  for (int32_t u = 0; u < n; ++u) {
    group->directory.Prefetch(entries[std::min(u + kKeysAhead, n - 1)]);
    CacheEntry& entry = group->directory[entries[u]];
    entry.coming_uses &= ~UseBit(step_);
    const int32_t row = entry.row;
    const int is_cached = row != kNoRow;
    const int is_fresh = now - entry.step <= oldest_copy;
    const int is_used_later = entry.last_use > now;
    rows[u] = row;
    *miss = u;
    miss += 1 - (is_cached & is_fresh);
    *released = row;
    released += is_cached & (1 - is_used_later);
  }
  group->misses.resize(miss - group->misses.data());
  group->released.resize(released - group->released.data());
}

void CachePlanner::PlanTable(const TablePlan& table, Group* group, TableCachePlan* to,
                             CachePlan* cache) {
  FindMisses(table, group, to);
  const bool owned = options_.mode == CachePlannerOptions::Mode::kOwned;
  const int32_t now = static_cast<int32_t>(step_);
  const uint32_t num_servers = cluster_map_.num_servers();
  const int32_t num_misses = static_cast<int32_t>(group->misses.size());
  int64_t last_push = cache->pushed_through.value();
  to->bypassed_positions.resize(num_misses);
  Appender loaded(num_misses, num_servers, &to->loaded);
  Appender bypassed(num_misses, num_servers, &to->bypassed);
  const int32_t* miss = group->misses.data();
  const int32_t* const end = miss + num_misses;
  for (uint32_t s = 0; s < num_servers; ++s) {
    for (; miss != end && *miss < table.server_begin[s + 1]; ++miss) {
      const int32_t u = *miss;
      CacheEntry& entry = group->directory[to->entries[u]];
      const bool used_later = entry.last_use > now;
      bool wanted = true;
      if (entry.row == kNoRow) {
        if (owned) last_push = std::max<int64_t>(last_push, entry.step);
        wanted = owned ? used_later : (entry.coming_uses & group->worthwhile_uses) != 0;
        if (wanted) group->Load(to->entries[u], &entry);
      }
      entry.step = now;
      if (entry.row != kNoRow) {
        to->rows[u] = entry.row;
        loaded.Add(table.keys[u], entry.row);
      } else {
        to->rows[u] = group->rows.capacity() + group->num_staged++;
        to->bypassed_positions[bypassed.size()] = u;
        bypassed.Add(table.keys[u], to->rows[u]);
        cache->counts.crowded_out += wanted ? 1 : 0;
        if (!used_later) group->dropped.push_back(to->entries[u]);
      }
    }
    loaded.EndServer(s);
    bypassed.EndServer(s);
  }
  loaded.End();
  bypassed.End();
  to->bypassed_positions.resize(bypassed.size());
  if (owned) cache->pushed_through = Step(last_push);
  cache->counts.hits += table.num_unique() - num_misses;
  cache->counts.loaded += loaded.size();
  cache->counts.bypassed += bypassed.size();
}

void CachePlanner::GiveUpVictims(Group* group, CachePlan* cache) {
  for (int32_t t : group->tables) Clear(&cache->tables[t].evicted);
  for (const Group::Victim& victim : group->victims) {
    group->dropped.push_back(victim.entry);
    if (options_.mode == CachePlannerOptions::Mode::kCopies) continue;
    const CacheEntry& entry = group->directory[victim.entry];
    CachedKeys& evicted = cache->tables[entry.table].evicted;
    evicted.keys.push_back(entry.key);
    evicted.rows.push_back(victim.row);
  }
  cache->counts.evicted += static_cast<int64_t>(group->victims.size());
  for (int32_t t : group->tables) SortByServer(t, &cache->tables[t].evicted);
}

size_t CachePlanner::num_entries() const {
  size_t entries = 0;
  for (const std::unique_ptr<Group>& group : groups_) entries += group->directory.size();
  return entries;
}

// Stable.
void CachePlanner::SortByServer(int32_t table, CachedKeys* keys) {
  const uint32_t num_servers = cluster_map_.num_servers();
  std::vector<int32_t>& begin = keys->server_begin;
  begin.assign(num_servers + 1, 0);
  if (num_servers == 1) {
    begin[1] = keys->size();
    return;
  }
  std::swap(*keys, unsorted_);
  std::swap(keys->server_begin, unsorted_.server_begin);
  const int32_t n = unsorted_.size();
  servers_.resize(n);
  for (int32_t i = 0; i < n; ++i) {
    servers_[i] = cluster_map_.ServerOfHash(KeyHash(salts_[table], unsorted_.keys[i])).value();
    ++begin[servers_[i] + 1];
  }
  for (uint32_t s = 0; s < num_servers; ++s) begin[s + 1] += begin[s];
  next_of_server_.assign(begin.begin(), begin.end() - 1);
  keys->keys.resize(n);
  keys->rows.resize(n);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t position = next_of_server_[servers_[i]]++;
    keys->keys[position] = unsorted_.keys[i];
    keys->rows[position] = unsorted_.rows[i];
  }
}

}  // namespace thermocline
