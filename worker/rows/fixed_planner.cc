#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_planner.h"

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
  struct Pushed {
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
  std::deque<Pushed> steps_;
};

class FixedPlanner : public RowPlanner {
 public:
  FixedPlanner(const RowSourceOptions& options, ThreadPool* threads)
      : options_(options),
        rows_(*options.fixed_rows),
        threads_(threads),
        pushes_(options.tables.size()),
        last_push_(options.tables.size()),
        first_staged_(options.tables.size()) {}

  absl::Status Plan(StepContext* context, StepTasks*) override {
    const bool is_alone = options_.num_workers == 1;
    CachePlan& plan =
        BeginPlan(is_alone ? GradientRoute::kLocal : GradientRoute::kAll, context)->cache;
    std::vector<absl::Status> statuses(plan.tables.size());
    threads_->ParallelFor(plan.tables.size(),
                          [&](int64_t t, int) { statuses[t] = FindRows(t, context); });
    for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
    PlaceBypassed(&plan);
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      const int32_t bypassed = plan.tables[t].bypassed.size();
      plan.counts.bypassed += bypassed;
      plan.counts.hits += context->plan.tables[t].num_unique() - bypassed;
    }
    plan.counts.rows_held = rows_.layout().capacity_rows();
    plan.pushed_through = kNoStep;
    if (options_.held == HeldSet::kStatic) FindLastPush(context->step(), &plan);
    PullBypassed(context);
    if (!is_alone) context->row_plan.awaits_push_of = context->step() - 1;
    MapLookups(
        [&](int32_t t) -> const auto& { return plan.tables[t].rows; }, threads_, &context->plan);
    return absl::OkStatus();
  }

 private:
  // Finds the rows of the slab for fixed keys; lists the others.
  absl::Status FindRows(size_t t, StepContext* context) {
    const TablePlan& keys = context->plan.tables[t];
    TableCachePlan& to = context->row_plan.cache.tables[t];
    const std::vector<int32_t> no_keys(options_.num_servers + 1, 0);
    to.evicted.server_begin = to.loaded.server_begin = no_keys;
    to.rows.resize(keys.keys.size());
    const bool are_all_held =
        rows_.FindAll(t, keys.keys, absl::MakeSpan(to.rows)) == keys.keys.size();
    if (options_.held == HeldSet::kHot && !are_all_held) {
      const auto cold = std::find(to.rows.begin(), to.rows.end(), kNoRow) - to.rows.begin();
      return absl::DataLossError(absl::StrCat(
          "step ", context->step().value(), ": table '", rows_.tables()[t].name, "', key ",
          keys.keys[cold], " is in a hot batch, but it is not among the hot rows that go with it"));
    }
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
    if (options_.held == HeldSet::kStatic) {
      last_push_[t] = pushes_[t].Add(context->step(), to.bypassed.keys, options_.window_steps);
    }
    return absl::OkStatus();
  }

  // Gives the bypassed keys rows of staging.
  void PlaceBypassed(CachePlan* plan) {
    for (const CacheGroupLayout& group : options_.layout.groups) {
      int32_t next_staged = group.capacity;
      for (const int32_t t : group.tables) {
        first_staged_[t] = next_staged;
        next_staged += plan->tables[t].bypassed.size();
      }
    }
    threads_->ParallelFor(plan->tables.size(),
                          [&](int64_t t, int) { PlaceBypassed(t, &plan->tables[t]); });
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
    if (options_.servers_forget_rows() && step > options_.start_step) {
      plan->pushed_through = step - 1;
    }
  }

  const RowSourceOptions options_;
  const HotRows& rows_;
  ThreadPool* const threads_;
  std::vector<RecentPushes> pushes_;  // [tables]
  // Used only within a call:
  std::vector<Step> last_push_;        // [tables]
  std::vector<int32_t> first_staged_;  // [tables]
};

}  // namespace

std::unique_ptr<RowPlanner> MakeFixedPlanner(const RowSourceOptions& options, ThreadPool* threads) {
  CHECK(options.fixed_rows != nullptr);
  CHECK(options.held == HeldSet::kHot || options.num_workers == 1);
  return std::make_unique<FixedPlanner>(options, threads);
}

}  // namespace thermocline
