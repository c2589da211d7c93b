#include "worker/rows/row_planner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

std::vector<TableId> TableIds(const RowSourceOptions& options) {
  std::vector<TableId> ids;
  for (const TableLayout& table : options.tables) ids.push_back(table.id);
  return ids;
}

// Rows that have to be held are, or the job can't go on.
absl::Status CheckRoom(const RowSourceOptions& options, const CachePlan& plan) {
  const auto [table, rows] = plan.no_room_to_keep;
  if (table < 0) return absl::OkStatus();
  return NoRoomToKeep(options.layout, table, options.tables[table].name, rows);
}

class PullPlanner : public RowPlanner {
 public:
  absl::Status Plan(StepContext* context, StepTasks*) override {
    StepPlan* const plan = BeginPlan(GradientRoute::kServer, context);
    for (size_t t = 0; t < plan->tables.size(); ++t) {
      const TablePlan& table = context->plan.tables[t];
      plan->tables[t].pulled = SharesOf(table.id, table);
      plan->tables[t].pulls_latest = true;
      plan->cache.counts.bypassed += table.num_unique();
    }
    return absl::OkStatus();
  }
};

class OwnCachePlanner : public RowPlanner {
 public:
  OwnCachePlanner(const RowSourceOptions& options, ThreadPool* threads)
      : options_(options),
        planner_(PlannerOptionsOf(options), ClusterMap(options.num_servers), TableIds(options),
                 threads),
        threads_(threads) {}

  absl::Status Admit(const absl::StatusOr<bool>& has_step, StepContext* context, StepTasks* tasks,
                     bool* goes_on) override {
    RETURN_IF_ERROR(RowPlanner::Admit(has_step, context, tasks, goes_on));
    if (!*goes_on) return absl::OkStatus();
    return planner_.Admit(context->step(), SharesOf(context->plan), &context->row_plan.cache);
  }

  absl::Status Plan(StepContext* context, StepTasks*) override {
    StepPlan* const plan = BeginPlan(GradientRoute::kLocal, context);
    planner_.Plan(context->step(), SharesOf(context->plan), &plan->cache);
    RETURN_IF_ERROR(CheckRoom(options_, plan->cache));
    PullBypassed(context);
    MapLookups(
        [&](int32_t t) -> const auto& { return plan->cache.tables[t].rows; }, threads_,
        &context->plan);
    return absl::OkStatus();
  }

 private:
  const RowSourceOptions options_;
  CachePlanner planner_;
  ThreadPool* const threads_;
};

// An owner's answer to a rank: pushed_through (int64), then of each table a bit for each key that
// was asked for, from the lowest of whole bytes: 1: the owner holds it.
constexpr size_t kBitsBegin = sizeof(int64_t);
size_t BytesOfBits(size_t bits) { return (bits + 7) / 8; }

class SharedCachePlanner : public RowPlanner {
 public:
  SharedCachePlanner(const RowSourceOptions& options, Exchange* exchange, ThreadPool* threads)
      : options_(options),
        exchange_(exchange),
        threads_(threads),
        owners_(exchange->num_ranks()),
        servers_(options.num_servers),
        planner_(PlannerOptionsOf(options), servers_, TableIds(options), threads),
        request_planners_(threads->num_threads(),
                          RequestPlanner(exchange->rank(), exchange->num_ranks(), servers_)),
        scratch_(options.tables.size()),
        group_of_(options.tables.size()),
        next_step_(options.start_step) {
    for (const CacheGroupLayout& group : options_.layout.groups) {
      for (const int32_t table : group.tables) group_of_[table] = &group;
    }
  }

  absl::Status Admit(const absl::StatusOr<bool>& has_step, StepContext* context, StepTasks* tasks,
                     bool* goes_on) override {
    const Step step = next_step_;
    next_step_ = step + 1;
    const bool has_own = has_step.ok() && *has_step;
    if (has_own) {
      CHECK_EQ(context->step().value(), step.value());
      RETURN_IF_ERROR(PostRequests(context));
    } else {
      const absl::Status posted = exchange_->PostEnd(step, has_step.status());
      // A rank that can't read its data ends the job, with its own error.
      if (!has_step.ok()) return has_step.status();
      RETURN_IF_ERROR(posted);
    }
    tasks->After(StepWait::For({step, Phase::kKeys}), [this, step, context, goes_on] {
      ASSIGN_OR_RETURN(*goes_on, exchange_->HasStep(step));
      return *goes_on ? TakeRequests(context) : absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::Status Plan(StepContext* context, StepTasks* tasks) override {
    StepPlan* const plan = BeginPlan(GradientRoute::kOwner, context);
    planner_.Plan(context->step(), RequestedBy(*plan), &plan->cache);
    RETURN_IF_ERROR(CheckRoom(options_, plan->cache));
    RETURN_IF_ERROR(PostPlans(context->step(), *plan));
    ForEachTable([&](size_t t, int) { KeepHeld(t, plan->cache.tables[t].rows, &plan->tables[t]); });
    tasks->After(StepWait::For({context->step(), Phase::kPlans}),
                 [this, context] { return TakePlans(context); });
    return absl::OkStatus();
  }

  void Cancel() override { exchange_->Stop(); }

 private:
  // The keys of a table, owner by owner; then which of them are held.
  struct Scratch {
    UninitializedVector<uint32_t> owners;  // [num_unique]
    UninitializedVector<Key> keys;
    UninitializedVector<uint32_t> counts;
    std::vector<int32_t> next;             // [ranks]
    UninitializedVector<uint8_t> is_held;  // [num_unique] by u
  };

  static std::vector<KeyShares> RequestedBy(const StepPlan& plan) {
    std::vector<KeyShares> shares;
    for (const StepPlan::Table& table : plan.tables) {
      shares.push_back(SharesOf(table.requested.id, table.requested));
    }
    return shares;
  }
  template <typename Work>
  void ForEachTable(Work work) {
    threads_->ParallelFor(options_.tables.size(),
                          [&](int64_t t, int thread) { work(static_cast<size_t>(t), thread); });
  }

  absl::Status PostRequests(StepContext* context);
  void SplitByOwner(const TablePlan& keys, bool is_shared, Scratch* scratch,
                    StepPlan::Table* to) const;
  absl::Status TakeRequests(StepContext* context);
  absl::Status PostPlans(Step step, const StepPlan& plan);
  void KeepHeld(size_t t, absl::Span<const int32_t> rows, StepPlan::Table* to);
  absl::Status TakePlans(StepContext* context);
  static void TakeBits(const uint8_t* const* bits, UninitializedVector<uint8_t>* is_held,
                       StepPlan::Table* to);
  static void PlaceKeys(const TablePlan& keys, absl::Span<const uint8_t> is_held,
                        StepPlan::Table* to);

  const RowSourceOptions options_;
  Exchange* const exchange_;
  ThreadPool* const threads_;
  const ClusterMap owners_, servers_;
  CachePlanner planner_;
  std::vector<RequestPlanner> request_planners_;   // one for each thread
  std::vector<Scratch> scratch_;                   // [tables]
  std::vector<const CacheGroupLayout*> group_of_;  // [tables]
  Step next_step_;                                 // to be admitted
};

// Tables whose rows only the servers can decide on are asked of no owner.
absl::Status SharedCachePlanner::PostRequests(StepContext* context) {
  StepPlan& plan = context->row_plan;
  plan.tables.resize(options_.tables.size());
  ForEachTable([&](size_t t, int) {
    SplitByOwner(context->plan.tables[t], group_of_[t]->holds_rows, &scratch_[t], &plan.tables[t]);
  });
  std::vector<Block> blocks(exchange_->num_ranks());
  std::vector<KeyRequest> requests(options_.tables.size());
  for (uint32_t owner = 0; owner < blocks.size(); ++owner) {
    for (size_t t = 0; t < requests.size(); ++t) {
      const int32_t begin = plan.tables[t].owner_begin[owner], n = plan.tables[t].CountOf(owner);
      requests[t] = {absl::MakeConstSpan(scratch_[t].keys).subspan(begin, n),
                     absl::MakeConstSpan(scratch_[t].counts).subspan(begin, n)};
    }
    blocks[owner].bytes = std::make_shared<BlockBytes>(EncodeRequests(requests));
  }
  return exchange_->Post({context->step(), Phase::kKeys}, std::move(blocks));
}

void SharedCachePlanner::SplitByOwner(const TablePlan& keys, bool is_shared, Scratch* scratch,
                                      StepPlan::Table* to) const {
  const uint32_t num_ranks = owners_.num_servers();
  const int32_t n = is_shared ? keys.num_unique() : 0;
  to->owner_begin.assign(num_ranks + 1, 0);
  scratch->owners.resize(n);
  const uint64_t salt = TableSalt(keys.id);
  for (int32_t u = 0; u < n; ++u) {
    scratch->owners[u] = owners_.ServerOfHash(KeyHash(salt, keys.keys[u])).value();
    ++to->owner_begin[scratch->owners[u] + 1];
  }
  for (uint32_t r = 0; r < num_ranks; ++r) to->owner_begin[r + 1] += to->owner_begin[r];
  scratch->next.assign(to->owner_begin.begin(), to->owner_begin.end() - 1);
  to->asked.resize(n);
  scratch->keys.resize(n);
  scratch->counts.resize(n);
  for (int32_t u = 0; u < n; ++u) {
    const int32_t position = scratch->next[scratch->owners[u]]++;
    to->asked[position] = u;
    scratch->keys[position] = keys.keys[u];
    scratch->counts[position] = keys.counts[u];
  }
}

absl::Status SharedCachePlanner::TakeRequests(StepContext* context) {
  const BlockId id = {context->step(), Phase::kKeys};
  const size_t num_tables = options_.tables.size();
  ASSIGN_OR_RETURN(const ReceivedBlocks blocks, exchange_->Receive(id));
  std::vector<std::vector<KeyRequest>> requests(num_tables);  // [tables][ranks]
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    absl::StatusOr<std::vector<KeyRequest>> of_rank =
        DecodeRequests(blocks.from(WorkerRank(rank)), num_tables);
    if (!of_rank.ok()) {
      return RefuseBlock(id, rank, std::string(of_rank.status().message()), exchange_);
    }
    for (size_t t = 0; t < num_tables; ++t) requests[t].push_back((*of_rank)[t]);
  }
  StepPlan& plan = context->row_plan;
  std::vector<absl::Status> statuses(num_tables);
  ForEachTable([&](size_t t, int thread) {
    statuses[t] = request_planners_[thread].Plan(options_.tables[t].id, requests[t],
                                                 &plan.tables[t].requested);
  });
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    exchange_->Fail(absl::InternalError(absl::StrCat(Describe(id), ": ", status.message())));
    return exchange_->status();
  }
  return planner_.Admit(context->step(), RequestedBy(plan), &plan.cache);
}

absl::Status SharedCachePlanner::PostPlans(Step step, const StepPlan& plan) {
  std::vector<Block> blocks(exchange_->num_ranks());
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    size_t bytes = kBitsBegin;
    for (const StepPlan::Table& table : plan.tables) {
      bytes += BytesOfBits(table.requested.positions[rank].size());
    }
    BlockBytes block(bytes);
    std::fill(block.begin(), block.end(), 0);
    const int64_t pushed_through = plan.cache.pushed_through.value();
    std::memcpy(block.data(), &pushed_through, sizeof(pushed_through));
    uint8_t* bits = block.data() + kBitsBegin;
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      const UninitializedVector<int32_t>& positions = plan.tables[t].requested.positions[rank];
      const int32_t* const rows = plan.cache.tables[t].rows.data();
      for (size_t i = 0; i < positions.size(); ++i) {
        const bool is_held = rows[positions[i]] < group_of_[t]->capacity;
        bits[i / 8] |= static_cast<uint8_t>(is_held ? 1u << (i % 8) : 0u);
      }
      bits += BytesOfBits(positions.size());
    }
    blocks[rank].bytes = std::make_shared<BlockBytes>(std::move(block));
  }
  return exchange_->Post({step, Phase::kPlans}, std::move(blocks));
}

// Leaves the keys held of those that ranks asked for.
void SharedCachePlanner::KeepHeld(size_t t, absl::Span<const int32_t> rows, StepPlan::Table* to) {
  UninitializedVector<uint8_t>& is_held = scratch_[t].is_held;
  is_held.resize(rows.size());
  to->held_rows.clear();
  for (size_t u = 0; u < rows.size(); ++u) {
    is_held[u] = rows[u] < group_of_[t]->capacity ? 1 : 0;
    if (is_held[u] != 0) to->held_rows.push_back(rows[u]);
  }
  RetainKeys(is_held, &to->requested);
}

absl::Status SharedCachePlanner::TakePlans(StepContext* context) {
  const BlockId id = {context->step(), Phase::kPlans};
  ASSIGN_OR_RETURN(const ReceivedBlocks answers, exchange_->Receive(id));
  StepPlan* const plan = &context->row_plan;
  const size_t num_tables = options_.tables.size();
  std::vector<const uint8_t*> bits(num_tables * answers.size());  // [tables][owners]
  plan->pushed_through = kNoStep;
  for (uint32_t owner = 0; owner < answers.size(); ++owner) {
    const absl::Span<const uint8_t> block = answers.from(WorkerRank(owner));
    size_t bytes = kBitsBegin;
    for (size_t t = 0; t < num_tables; ++t) {
      bits[t * answers.size() + owner] = block.data() + bytes;
      bytes += BytesOfBits(plan->tables[t].CountOf(owner));
    }
    RETURN_IF_ERROR(CheckSize(id, owner, block.size(), bytes, exchange_));
    int64_t pushed_through = 0;
    std::memcpy(&pushed_through, block.data(), sizeof(pushed_through));
    plan->pushed_through = std::max(plan->pushed_through, Step(pushed_through));
  }
  ForEachTable([&](size_t t, int) {
    UninitializedVector<uint8_t>& is_held = scratch_[t].is_held;
    is_held.assign(context->plan.tables[t].num_unique(), 0);
    TakeBits(bits.data() + t * answers.size(), &is_held, &plan->tables[t]);
    PlaceKeys(context->plan.tables[t], is_held, &plan->tables[t]);
    plan->tables[t].pulls_latest = !group_of_[t]->holds_rows;
  });
  plan->awaits_push_of = context->step() - 1;
  MapLookups(
      [&](int32_t t) -> const auto& { return plan->tables[t].row_indices; }, threads_,
      &context->plan);
  return absl::OkStatus();
}

// Leaves the keys that their owners hold of those that this rank asked for.
void SharedCachePlanner::TakeBits(const uint8_t* const* bits, UninitializedVector<uint8_t>* is_held,
                                  StepPlan::Table* to) {
  int32_t begin = 0, kept = 0;
  for (uint32_t owner = 0; owner + 1 < to->owner_begin.size(); ++owner) {
    const int32_t count = to->owner_begin[owner + 1] - begin;
    for (int32_t i = 0; i < count; ++i) {
      if ((bits[owner][i / 8] >> (i % 8) & 1) == 0) continue;
      const int32_t u = to->asked[begin + i];
      to->asked[kept++] = u;
      (*is_held)[u] = 1;
    }
    begin += count;
    to->owner_begin[owner + 1] = kept;
  }
  to->asked.resize(kept);
}

void SharedCachePlanner::PlaceKeys(const TablePlan& keys, absl::Span<const uint8_t> is_held,
                                   StepPlan::Table* to) {
  CachedKeys& unheld = to->unheld;
  unheld.keys.clear();
  unheld.counts.clear();
  unheld.server_begin.assign(1, 0);
  to->unheld_positions.clear();
  to->row_indices.resize(keys.num_unique());
  for (size_t server = 0; server + 1 < keys.server_begin.size(); ++server) {
    for (int32_t u = keys.server_begin[server]; u < keys.server_begin[server + 1]; ++u) {
      if (is_held[u] != 0) continue;
      to->row_indices[u] = unheld.size();
      unheld.keys.push_back(keys.keys[u]);
      unheld.counts.push_back(keys.counts[u]);
      to->unheld_positions.push_back(u);
    }
    unheld.server_begin.push_back(unheld.size());
  }
  for (size_t i = 0; i < to->asked.size(); ++i) {
    to->row_indices[to->asked[i]] = unheld.size() + static_cast<int32_t>(i);
  }
  to->pulled = SharesOf(keys.id, unheld);
  to->pulled_positions = to->unheld_positions;
}

}  // namespace

StepPlan* BeginPlan(GradientRoute route, StepContext* context) {
  StepPlan* const plan = &context->row_plan;
  plan->route = route;
  plan->tables.resize(context->plan.tables.size());
  plan->cache.tables.resize(plan->tables.size());
  plan->cache.counts = CacheCounts();
  for (StepPlan::Table& table : plan->tables) {
    table.pulled = {};
    table.pulled_positions = {};
    table.pulls_latest = false;
  }
  plan->pushed_through = plan->awaits_push_of = kNoStep;
  plan->loads_set = false;
  return plan;
}

void PullBypassed(StepContext* context) {
  StepPlan& plan = context->row_plan;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    TableCachePlan& from = plan.cache.tables[t];
    const UninitializedVector<uint32_t>& counts = context->plan.tables[t].counts;
    from.bypassed.counts.resize(from.bypassed.keys.size());
    for (int32_t i = 0; i < from.bypassed.size(); ++i) {
      from.bypassed.counts[i] = counts[from.bypassed_positions[i]];
    }
    plan.tables[t].pulled = SharesOf(context->plan.tables[t].id, from.bypassed);
    plan.tables[t].pulled_positions = from.bypassed_positions;
  }
  plan.pushed_through = plan.awaits_push_of = plan.cache.pushed_through;
}

CachePlannerOptions PlannerOptionsOf(const RowSourceOptions& options) {
  CachePlannerOptions planner;
  for (const CacheGroupLayout& group : options.layout.groups) {
    planner.groups.push_back({group.tables, group.capacity, group.keeps_rows});
  }
  planner.window_steps = options.window_steps;
  // Where rows are shared, the planner sees no keys of such tables.
  planner.follows_every_push =
      options.held != HeldSet::kSharedCache && options.servers_forget_rows();
  return planner;
}

std::unique_ptr<RowPlanner> MakePullPlanner() { return std::make_unique<PullPlanner>(); }

std::unique_ptr<RowPlanner> MakeRowPlanner(const RowSourceOptions& options, Exchange* exchange,
                                           ThreadPool* threads) {
  switch (options.held) {
    case HeldSet::kNone:
      return MakePullPlanner();
    case HeldSet::kCache:
      return std::make_unique<OwnCachePlanner>(options, threads);
    case HeldSet::kSharedCache:
      return std::make_unique<SharedCachePlanner>(options, exchange, threads);
    case HeldSet::kStatic:
    case HeldSet::kHot:
      return MakeFixedPlanner(options, threads);
  }
  return nullptr;
}

absl::Status RefuseBlock(BlockId id, uint32_t from, const std::string& why, Exchange* exchange) {
  const absl::Status refused =
      absl::InternalError(absl::StrCat("rank ", from, ", ", Describe(id), ": ", why));
  exchange->Fail(refused);
  return refused;
}

absl::Status CheckSize(BlockId id, uint32_t from, size_t bytes, size_t expected_bytes,
                       Exchange* exchange) {
  if (bytes == expected_bytes) return absl::OkStatus();
  return RefuseBlock(id, from, absl::StrCat(bytes, " bytes instead of ", expected_bytes), exchange);
}

}  // namespace thermocline
