#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"
#include "worker/rows/cache_stage.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/owned_rows.h"

namespace thermocline {
namespace {

// The keys of a table that the last steps have bypassed, each with the last of them.
class RecentPushes {
 public:
  // The step pushes `keys`. Returns the last of the `window_steps` steps before it that has pushed
  // any of them; kNoStep: none has.
  Step Add(Step step, const UninitializedVector<Key>& keys, int window_steps) {
    while (!steps_.empty() && steps_.front().step < step - window_steps) Forget();
    Step last = kNoStep;
    for (const Key key : keys) {
      Step& pushed = last_.try_emplace(key, kNoStep).first->second;
      last = std::max(last, pushed);
      pushed = step;
    }
    steps_.push_back({step, keys});
    return last;
  }

 private:
  struct OfStep {
    Step step;
    UninitializedVector<Key> keys;
  };

  void Forget() {
    for (const Key key : steps_.front().keys) {
      const auto found = last_.find(key);
      if (found->second == steps_.front().step) last_.erase(found);
    }
    steps_.pop_front();
  }

  absl::flat_hash_map<Key, Step> last_;
  std::deque<OfStep> steps_;
};

class StaticStage : public CacheStage {
 public:
  StaticStage(const CachedSourceOptions& options, ThreadPool* threads)
      : options_(options),
        rows_(*options.static_rows),
        threads_(threads),
        pushes_(options.tables.size()),
        last_push_(options.tables.size()),
        first_staged_(options.tables.size()) {}

  absl::StatusOr<bool> Admit(absl::StatusOr<bool> has_step, StepContext*) override {
    return has_step;
  }

  absl::Status Plan(StepContext* context) override {
    CachePlan& plan = context->cache_plan;
    plan.tables.resize(options_.tables.size());
    threads_->ParallelFor(options_.tables.size(), [&](int64_t t, int) { FindRows(t, context); });
    plan.counts = CacheCounts();
    for (const CacheGroupLayout& group : options_.layout.groups) {
      int32_t next_staged = group.capacity;
      for (const int32_t t : group.tables) {
        first_staged_[t] = next_staged;
        next_staged += plan.tables[t].bypassed.size();
      }
      plan.counts.rows_held += group.capacity;
    }
    threads_->ParallelFor(options_.tables.size(),
                          [&](int64_t t, int) { PlaceBypassed(t, &plan.tables[t]); });
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      const int32_t bypassed = plan.tables[t].bypassed.size();
      plan.counts.bypassed += bypassed;
      plan.counts.hits += context->plan.tables[t].num_unique() - bypassed;
    }
    FindLastPush(context->step(), &plan);
    threads_->ParallelFor(context->plan.features.size(), [&](int64_t f, int) {
      FeaturePlan& feature = context->plan.features[f];
      MapLookups(plan.tables[feature.table].rows, &feature);
    });
    return absl::OkStatus();
  }

 private:
  // Rows of the slab for hot keys; lists the others.
  void FindRows(size_t t, StepContext* context) {
    const TablePlan& keys = context->plan.tables[t];
    TableCachePlan& to = context->cache_plan.tables[t];
    const std::vector<int32_t> no_keys(options_.num_servers + 1, 0);
    to.evicted.server_begin = to.loaded.server_begin = no_keys;
    to.rows.resize(keys.keys.size());
    rows_.FindAll(t, keys.keys, absl::MakeSpan(to.rows));
    to.bypassed.keys.clear();
    to.bypassed.server_begin.assign(1, 0);
    to.bypassed_positions.clear();
    for (uint32_t server = 0; server < options_.num_servers; ++server) {
      for (int32_t u = keys.server_begin[server]; u < keys.server_begin[server + 1]; ++u) {
        if (to.rows[u] != kNoRow) continue;
        to.bypassed.keys.push_back(keys.keys[u]);
        to.bypassed_positions.push_back(u);
      }
      to.bypassed.server_begin.push_back(to.bypassed.size());
    }
    last_push_[t] = pushes_[t].Add(context->step(), to.bypassed.keys, options_.window_steps);
  }

  void PlaceBypassed(size_t t, TableCachePlan* to) const {
    to->bypassed.rows.resize(to->bypassed.keys.size());
    for (int32_t i = 0; i < to->bypassed.size(); ++i) {
      to->bypassed.rows[i] = first_staged_[t] + i;
      to->rows[to->bypassed_positions[i]] = first_staged_[t] + i;
    }
  }

  // As CachePlan::pushed_through says: keys that the window's steps have not bypassed were pushed
  // before it, if ever.
  void FindLastPush(Step step, CachePlan* plan) const {
    plan->pushed_through = step - options_.window_steps - 1;
    if (plan->pushed_through < options_.start_step) plan->pushed_through = kNoStep;
    for (const Step last : last_push_) {
      plan->pushed_through = std::max(plan->pushed_through, last);
    }
    if (options_.servers_forget_rows() && step > options_.start_step)
      plan->pushed_through = step - 1;
  }

  const CachedSourceOptions options_;
  const HotRows& rows_;
  ThreadPool* const threads_;
  std::vector<RecentPushes> pushes_;  // [tables]
  // Of the step at hand:
  std::vector<Step> last_push_;        // [tables]
  std::vector<int32_t> first_staged_;  // [tables]
};

}  // namespace

std::unique_ptr<CacheStage> MakeStaticStage(const CachedSourceOptions& options,
                                            ThreadPool* threads) {
  CHECK(options.static_rows != nullptr);
  CHECK_EQ(options.num_workers, 1u);
  return std::make_unique<StaticStage>(options, threads);
}

}  // namespace thermocline
