#include "worker/rows/cache_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/rows/cache_rows.h"

namespace thermocline {
struct CachePlanner::Group {
  explicit Group(const CachePlannerOptions::Group& options)
      : tables(options.tables), keeps_rows(options.keeps_rows), rows(options.capacity) {}

  const std::vector<int32_t> tables;
  const bool keeps_rows;
  CacheRows rows;
};

CachePlanner::CachePlanner(CachePlannerOptions options, const ClusterMap& cluster_map,
                           const std::vector<TableId>& tables, ThreadPool* threads)
    : options_(std::move(options)), threads_(threads), first_staged_(tables.size()) {
  CHECK_GE(options_.window_steps, 0);
  tables_.resize(tables.size());
  for (const CachePlannerOptions::Group& group : options_.groups) {
    for (int32_t t : group.tables) {
      CHECK_LT(static_cast<size_t>(t), tables.size());
      CHECK(tables_[t] == nullptr);  // It is in one group.
      tables_[t] = std::make_unique<CacheTable>(tables[t], cluster_map, group.keeps_rows);
    }
    groups_.push_back(std::make_unique<Group>(group));
  }
  for (const std::unique_ptr<CacheTable>& table : tables_) CHECK(table != nullptr);
}

CachePlanner::~CachePlanner() = default;

absl::Status CachePlanner::Admit(Step step, absl::Span<const KeyShares> tables, CachePlan* cache) {
  CHECK_EQ(tables.size(), tables_.size());
  if (step > kLastCachedStep) {
    return absl::OutOfRangeError(absl::StrCat("step ", step.value(), ": a cache knows steps up to ",
                                              kLastCachedStep.value(),
                                              "; --clear cache goes on without one"));
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const size_t known = tables_[t]->directory().size();
    if (known + tables[t].keys.size() <= options_.max_entries) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "step ", step.value(), ": a cache remembers at most ", options_.max_entries,
        " keys of table ", tables[t].table.value(), ", has ", known, " and meets ",
        tables[t].keys.size(), " more; make train.batch_size or cache.window_steps smaller"));
  }
  if (first_step_ < 0) {
    first_step_ = step.value();
    step_ = step.value() - 1;
  } else {
    CHECK_EQ(step.value(), admitted_ + 1);
  }
  admitted_ = step.value();
  cache->tables.resize(tables.size());
  const auto num_tables = static_cast<int64_t>(tables_.size());
  threads_->ParallelFor(num_tables, [&](int64_t t, int) {
    tables_[t]->Admit(static_cast<int32_t>(admitted_), tables[t].keys, &cache->tables[t]);
  });
  for (const std::unique_ptr<Group>& group : groups_) {
    for (const int32_t t : group->tables) {
      for (const int32_t row : tables_[t]->needed()) group->rows.Need(row);
    }
  }
  return absl::OkStatus();
}

// Why step - window_steps - 1 bounds the last push of every key that is pulled at `step` and whose
// entry knows of none. Only earlier steps have pushed, and what they push of a key is the gradient
// at a step q that bypassed the cache with it, or the row at a step q whose plan evicted it, or
// before that while it was held.
// - Bypassed at q, and used again by a step admitted then: the entry stays up to that use, with q.
// - Bypassed at q, and not used again by a step admitted then, q + window_steps or later ones: so
//   step > q + window_steps.
// - Evicted at q: not used by those steps either. The entry goes with the row; no push before that
//   matters, as q was later.
// Pushes before the first step admitted are not bounded here.
void CachePlanner::Plan(Step step, absl::Span<const KeyShares> tables, CachePlan* cache) {
  CHECK_EQ(step.value(), step_ + 1);
  CHECK_LE(step.value(), admitted_);
  CHECK_EQ(cache->tables.size(), tables.size());
  step_ = step.value();
  cache->counts = CacheCounts();
  cache->no_room_to_keep = {};
  cache->pushed_through = kNoStep;
  const Step before_window = step - options_.window_steps - 1;
  if (before_window.value() >= first_step_) cache->pushed_through = before_window;
  if (options_.follows_every_push && step > Step(first_step_)) {
    cache->pushed_through = step - 1;
  }
  const auto num_tables = static_cast<int64_t>(tables_.size());
  threads_->ParallelFor(num_tables, [&](int64_t t, int) {
    tables_[t]->FindMisses(static_cast<int32_t>(step_), tables[t], &cache->tables[t]);
  });
  for (const std::unique_ptr<Group>& group : groups_) PlanGroup(group.get(), cache);
  threads_->ParallelFor(num_tables, [&](int64_t t, int) {
    tables_[t]->Fill(tables[t], first_staged_[t], &cache->tables[t]);
  });
  for (size_t t = 0; t < tables_.size(); ++t) {
    const TableCachePlan& table = cache->tables[t];
    cache->pushed_through = std::max(cache->pushed_through, Step(tables_[t]->last_push()));
    cache->counts.loaded += table.loaded.size();
    cache->counts.bypassed += table.bypassed.size();
    cache->counts.hits += tables[t].size() - table.loaded.size() - table.bypassed.size();
  }
}

// What the tables of a group share: rows of the cache, and of staging.
void CachePlanner::PlanGroup(Group* group, CachePlan* cache) {
  int32_t next_staged = group->rows.capacity();
  for (const int32_t t : group->tables) {
    GiveRows(t, group, cache);
    first_staged_[t] = next_staged;
    next_staged += tables_[t]->num_bypassed();
  }
  cache->counts.rows_held += group->rows.num_held();
  if (group->keeps_rows) {
    cache->counts.rows_kept += group->rows.num_held();
    FindNoRoom(*group, cache);
    return;
  }
  // The rows that this step uses are reserved until here.
  for (const int32_t t : group->tables) {
    for (const int32_t row : tables_[t]->released()) group->rows.Release(row);
  }
}

void CachePlanner::FindNoRoom(const Group& group, CachePlan* cache) const {
  CachePlan::NoRoom no_room;
  no_room.rows = group.rows.num_held();
  for (const int32_t t : group.tables) {
    const int32_t bypassed = tables_[t]->num_bypassed();
    if (bypassed > 0) no_room.table = t;
    no_room.rows += bypassed;
  }
  if (no_room.table >= 0) cache->no_room_to_keep = no_room;
}

void CachePlanner::GiveRows(int32_t t, Group* group, CachePlan* cache) {
  CacheTable& table = *tables_[t];
  for (int32_t i = 0; i < table.num_wanted(); ++i) {
    const CacheTable::Wanted wanted = table.wanted(i);
    RowOwner victim;
    const int32_t row = group->rows.Take({t, wanted.entry}, wanted.frequency, &victim);
    table.GiveRow(i, row);
    cache->counts.rejected_no_room += row == kNoRow ? 1 : 0;
    if (row == kNoRow || victim.table < 0) continue;
    tables_[victim.table]->Lose(victim.entry, row);
    ++cache->counts.evicted;
  }
}

size_t CachePlanner::num_entries() const {
  size_t entries = 0;
  for (const std::unique_ptr<CacheTable>& table : tables_) entries += table->directory().size();
  return entries;
}

}  // namespace thermocline
