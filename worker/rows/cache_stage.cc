#include "worker/rows/cache_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/rows/cached_source.h"

namespace thermocline {
namespace {

std::vector<TableId> TableIds(const CachedSourceOptions& options) {
  std::vector<TableId> ids;
  for (const TableLayout& table : options.tables) ids.push_back(table.id);
  return ids;
}

// Rows that have to be held are, or the job can't go on.
absl::Status CheckRoom(const CachedSourceOptions& options, const CachePlan& plan) {
  const auto [table, rows] = plan.no_room_to_keep;
  if (table < 0) return absl::OkStatus();
  return NoRoomToKeep(options.layout, table, options.tables[table].name, rows);
}

class OwnCacheStage : public CacheStage {
 public:
  OwnCacheStage(const CachedSourceOptions& options, ThreadPool* threads)
      : options_(options),
        planner_(PlannerOptionsOf(options), ClusterMap(options.num_servers), TableIds(options),
                 threads),
        threads_(threads) {}

  absl::StatusOr<bool> Admit(absl::StatusOr<bool> has_step, StepContext* context) override {
    if (has_step.ok() && *has_step) {
      RETURN_IF_ERROR(
          planner_.Admit(context->step(), SharesOf(context->plan), &context->cache_plan));
    }
    return has_step;
  }

  absl::Status Plan(StepContext* context) override {
    planner_.Plan(context->step(), SharesOf(context->plan), &context->cache_plan);
    RETURN_IF_ERROR(CheckRoom(options_, context->cache_plan));
    threads_->ParallelFor(context->plan.features.size(), [&](int64_t f, int) {
      FeaturePlan& feature = context->plan.features[f];
      MapLookups(context->cache_plan.tables[feature.table].rows, &feature);
    });
    return absl::OkStatus();
  }

 private:
  const CachedSourceOptions options_;
  CachePlanner planner_;
  ThreadPool* const threads_;
};

// An owner's answer to a rank: pushed_through (int64), then of each table a bit for each key that
// was asked for, from the lowest of whole bytes: 1: the owner holds it.
constexpr size_t kBitsBegin = sizeof(int64_t);
size_t BytesOfBits(size_t bits) { return (bits + 7) / 8; }

class SharedCacheStage : public CacheStage {
 public:
  SharedCacheStage(const CachedSourceOptions& options, Exchange* exchange, ThreadPool* threads)
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

  absl::StatusOr<bool> Admit(absl::StatusOr<bool> has_step, StepContext* context) override {
    const Step step = next_step_;
    next_step_ = step + 1;
    if (!has_step.ok() || !*has_step) {
      const absl::Status posted = exchange_->PostEnd(step, has_step.status());
      // A rank that can't read its data ends the job, with its own error.
      if (!has_step.ok()) return has_step;
      RETURN_IF_ERROR(posted);
      return exchange_->HasStep(step);
    }
    CHECK_EQ(context->step().value(), step.value());
    RETURN_IF_ERROR(PostRequests(context));
    ASSIGN_OR_RETURN(const bool all_have, exchange_->HasStep(step));
    if (!all_have) return false;
    RETURN_IF_ERROR(TakeRequests(context));
    RETURN_IF_ERROR(
        planner_.Admit(step, SharesOf(context->of_cache.Get<SharedPlan>()), &context->cache_plan));
    return true;
  }

  absl::Status Plan(StepContext* context) override {
    SharedPlan& plan = context->of_cache.Get<SharedPlan>();
    planner_.Plan(context->step(), SharesOf(plan), &context->cache_plan);
    RETURN_IF_ERROR(CheckRoom(options_, context->cache_plan));
    RETURN_IF_ERROR(PostPlans(*context, plan));
    ForEachTable([&](size_t t, int) { KeepHeld(t, context->cache_plan.tables[t].rows, &plan); });
    ASSIGN_OR_RETURN(const ReceivedBlocks answers,
                     exchange_->Receive({context->step(), Phase::kPlans}));
    RETURN_IF_ERROR(TakePlans(answers, context, &plan));
    threads_->ParallelFor(context->plan.features.size(), [&](int64_t f, int) {
      FeaturePlan& feature = context->plan.features[f];
      MapLookups(plan.tables[feature.table].row_indices, &feature);
    });
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

  static std::vector<KeyShares> SharesOf(const SharedPlan& plan) {
    std::vector<KeyShares> shares;
    for (const RequestedKeys& keys : plan.requested) {
      shares.push_back(thermocline::SharesOf(keys.id, keys));
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
                    SharedPlan::Table* to) const;
  absl::Status TakeRequests(StepContext* context);
  absl::Status PostPlans(const StepContext& context, const SharedPlan& plan);
  void KeepHeld(size_t t, absl::Span<const int32_t> rows, SharedPlan* plan);
  absl::Status TakePlans(const ReceivedBlocks& answers, StepContext* context, SharedPlan* plan);
  static void TakeBits(const uint8_t* const* bits, UninitializedVector<uint8_t>* is_held,
                       SharedPlan::Table* to);
  static void PlaceKeys(const TablePlan& keys, absl::Span<const uint8_t> is_held,
                        SharedPlan::Table* to);

  const CachedSourceOptions options_;
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
absl::Status SharedCacheStage::PostRequests(StepContext* context) {
  SharedPlan& plan = context->of_cache.Get<SharedPlan>();
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

void SharedCacheStage::SplitByOwner(const TablePlan& keys, bool is_shared, Scratch* scratch,
                                    SharedPlan::Table* to) const {
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

absl::Status SharedCacheStage::TakeRequests(StepContext* context) {
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
  SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  plan.requested.resize(num_tables);
  std::vector<absl::Status> statuses(num_tables);
  ForEachTable([&](size_t t, int thread) {
    statuses[t] =
        request_planners_[thread].Plan(options_.tables[t].id, requests[t], &plan.requested[t]);
  });
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    exchange_->Fail(absl::InternalError(absl::StrCat(Describe(id), ": ", status.message())));
    return exchange_->status();
  }
  return absl::OkStatus();
}

absl::Status SharedCacheStage::PostPlans(const StepContext& context, const SharedPlan& plan) {
  std::vector<Block> blocks(exchange_->num_ranks());
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    size_t bytes = kBitsBegin;
    for (const RequestedKeys& keys : plan.requested) {
      bytes += BytesOfBits(keys.positions[rank].size());
    }
    BlockBytes block(bytes);
    std::fill(block.begin(), block.end(), 0);
    const int64_t pushed_through = context.cache_plan.pushed_through.value();
    std::memcpy(block.data(), &pushed_through, sizeof(pushed_through));
    uint8_t* bits = block.data() + kBitsBegin;
    for (size_t t = 0; t < plan.requested.size(); ++t) {
      const UninitializedVector<int32_t>& positions = plan.requested[t].positions[rank];
      const int32_t* const rows = context.cache_plan.tables[t].rows.data();
      for (size_t i = 0; i < positions.size(); ++i) {
        const bool is_held = rows[positions[i]] < group_of_[t]->capacity;
        bits[i / 8] |= static_cast<uint8_t>(is_held ? 1u << (i % 8) : 0u);
      }
      bits += BytesOfBits(positions.size());
    }
    blocks[rank].bytes = std::make_shared<BlockBytes>(std::move(block));
  }
  return exchange_->Post({context.step(), Phase::kPlans}, std::move(blocks));
}

// Of what ranks asked for, leaves the keys held.
void SharedCacheStage::KeepHeld(size_t t, absl::Span<const int32_t> rows, SharedPlan* plan) {
  plan->held_rows.resize(options_.tables.size());
  UninitializedVector<uint8_t>& is_held = scratch_[t].is_held;
  UninitializedVector<int32_t>& held_rows = plan->held_rows[t];
  is_held.resize(rows.size());
  held_rows.clear();
  for (size_t u = 0; u < rows.size(); ++u) {
    is_held[u] = rows[u] < group_of_[t]->capacity ? 1 : 0;
    if (is_held[u] != 0) held_rows.push_back(rows[u]);
  }
  RetainKeys(is_held, &plan->requested[t]);
}

absl::Status SharedCacheStage::TakePlans(const ReceivedBlocks& answers, StepContext* context,
                                         SharedPlan* plan) {
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
    RETURN_IF_ERROR(
        CheckSize({context->step(), Phase::kPlans}, owner, block.size(), bytes, exchange_));
    int64_t pushed_through = 0;
    std::memcpy(&pushed_through, block.data(), sizeof(pushed_through));
    plan->pushed_through = std::max(plan->pushed_through, Step(pushed_through));
  }
  ForEachTable([&](size_t t, int) {
    UninitializedVector<uint8_t>& is_held = scratch_[t].is_held;
    is_held.assign(context->plan.tables[t].num_unique(), 0);
    TakeBits(bits.data() + t * answers.size(), &is_held, &plan->tables[t]);
    PlaceKeys(context->plan.tables[t], is_held, &plan->tables[t]);
  });
  return absl::OkStatus();
}

// Of what this rank asked for, leaves the keys that their owners hold.
void SharedCacheStage::TakeBits(const uint8_t* const* bits, UninitializedVector<uint8_t>* is_held,
                                SharedPlan::Table* to) {
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

void SharedCacheStage::PlaceKeys(const TablePlan& keys, absl::Span<const uint8_t> is_held,
                                 SharedPlan::Table* to) {
  SharedPlan::Bypassed& bypassed = to->bypassed;
  bypassed.keys.clear();
  bypassed.counts.clear();
  bypassed.positions.clear();
  bypassed.server_begin.assign(1, 0);
  to->row_indices.resize(keys.num_unique());
  for (size_t server = 0; server + 1 < keys.server_begin.size(); ++server) {
    for (int32_t u = keys.server_begin[server]; u < keys.server_begin[server + 1]; ++u) {
      if (is_held[u] != 0) continue;
      to->row_indices[u] = bypassed.size();
      bypassed.keys.push_back(keys.keys[u]);
      bypassed.counts.push_back(keys.counts[u]);
      bypassed.positions.push_back(u);
    }
    bypassed.server_begin.push_back(bypassed.size());
  }
  for (size_t i = 0; i < to->asked.size(); ++i) {
    to->row_indices[to->asked[i]] = bypassed.size() + static_cast<int32_t>(i);
  }
}

}  // namespace

void MapLookups(absl::Span<const int32_t> rows, FeaturePlan* feature) {
  for (int32_t& index : feature->row_indices) index = rows[index];
}

std::unique_ptr<CacheStage> MakeCacheStage(const CachedSourceOptions& options, Exchange* exchange,
                                           ThreadPool* threads) {
  if (options.shares_rows) return std::make_unique<SharedCacheStage>(options, exchange, threads);
  if (options.static_rows != nullptr) return MakeStaticStage(options, threads);
  return std::make_unique<OwnCacheStage>(options, threads);
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
