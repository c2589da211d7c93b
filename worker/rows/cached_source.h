// An EmbeddingSource that keeps rows in the device's memory (owned_rows.h): the rows that a step
// reads are on the device before it runs, and stay there.
//
// With one worker, held rows are updated in place. With several workers under a staleness bound, a
// held row is a copy that is read for some steps, and every step pushes its gradients. (In sync
// mode they share their rows: shared_source.h.)
#ifndef THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_H_
#define THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "worker/rows/cache_planner.h"
#include "worker/rows/embedding_source.h"
#include "worker/rows/hot_loader.h"
#include "worker/rows/owned_rows.h"
#include "worker/rows/row_gradients.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// The distances that a cache uses: at most those of the job.
struct CacheDistances {
  int prefetch_steps = 0;
  // Several workers: a row pulled for step p is read through step p + copy_steps. Its pull asks for
  // the others' pushes through p + copy_steps - 1 - staleness_steps, so that it may be; the rest of
  // the staleness bound is left for prefetching.
  int copy_steps = 0;
};
CacheDistances DistancesOf(const CachedSourceOptions& options);

CachePlannerOptions PlannerOptionsOf(const CachedSourceOptions& options);

class CachedSource : public EmbeddingSource {
 public:
  // All that is pointed to outlives the source. REQUIRES: contexts that are fetched have a cache
  // plan; those fetched for evaluation have none.
  CachedSource(const CachedSourceOptions& options, PsSession* session, Device* device);
  ~CachedSource() override;

  int fetch_ahead() const override { return distances_.prefetch_steps; }
  void Fetch(const std::shared_ptr<StepContext>& context,
             const std::vector<std::vector<PullSlice>>& dense) override;
  Step AwaitsPushOf(const StepContext& context) const override {
    return owns_rows() ? context.cache_plan.pushed_through
                       : context.step() - 1 - distances_.prefetch_steps;
  }
  absl::Status Await(StepContext* context) override;
  void Update(StepContext* context) override;
  absl::Status Push(const std::shared_ptr<StepContext>& context,
                    std::vector<std::vector<wire::PushSlice>> dense) override;
  absl::Status FinishPush(StepContext* context) override;
  void FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) override;

  const OwnedRows* cache() const override { return &rows_; }

 private:
  // What is kept with a step.
  struct OfStep;
  struct TableOfStep;

  bool owns_rows() const { return options_.num_workers == 1; }

  PullWork PullBypassed(StepContext* context) const;
  void PlaceBypassed(StepContext* context, size_t table, std::vector<RowCopy>* scatters);
  void PlaceBypassedGradients(StepContext* context, size_t table);
  absl::Status PlaceGradients(StepContext* context);
  absl::Status FindCompleteThrough(StepContext* context);

  const CachedSourceOptions options_;
  const CacheDistances distances_;
  PsSession* const session_;
  Device* const device_;
  RemoteSource uncached_;  // for evaluation
  OwnedRows rows_;
  std::unique_ptr<HotLoader> loader_;  // of static rows that are not loaded yet; else null
  RowGradients gradients_;             // one worker's
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_H_
