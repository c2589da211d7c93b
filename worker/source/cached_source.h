// An EmbeddingSource that keeps rows in the device's memory and carries out the plans of a
// CachePlanner: the rows that a step reads are on the device before it runs, and stay there.
//
// With one worker, held rows are updated in place and become newer than the servers' rows. They
// return to the servers as whole rows: when they are evicted, all of them at steps that write back,
// and some earlier when too many are newer. With several workers, a held row is a copy that is read
// for some steps, and every step pushes its gradients.
//
// Why no pull reads a row too early: it names the last push that must be in its rows, which is the
// plan's pushed_through (cache_planner.h); pushes reach a server in the order of their steps, so
// that no two writes of a key can change places.
#ifndef THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_H_
#define THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/math/table_spec.h"
#include "kernels/device.h"
#include "kernels/transfer.h"
#include "worker/cache/cache_planner.h"
#include "worker/cache/device_slab.h"
#include "worker/cache/held_rows.h"
#include "worker/session/ps_session.h"
#include "worker/source/embedding_source.h"

namespace thermocline {

struct CachedSourceOptions : RemoteSourceOptions {
  Step start_step{0};
  CacheLayout layout;
  int window_steps = 8;
  int prefetch_steps = 2;  // less than window_steps
  // One worker: of the rows held, those that are newer than their server's are at most so many
  // bytes a server after each step, as evenly as keys are spread. It bounds the push of a
  // checkpoint, far below what a server takes of one push.
  uint64_t max_unwritten_bytes = uint64_t{1} << 30;
  // The rows of a write-back come to the host in pieces of about so many bytes, a few at a time.
  uint64_t write_back_piece_bytes = uint64_t{32} << 20;
};

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

  // Of all steps so far; may be called from any thread.
  CacheCounts counts() const;
  const CacheLayout& layout() const { return options_.layout; }
  int window_steps() const { return options_.window_steps; }

 private:
  // What is kept with a step (cached_source_step.h).
  struct OfStep;
  struct TableOfStep;
  struct WrittenRows;
  struct WrittenBack;

  bool owns_rows() const { return options_.num_workers == 1; }
  DeviceSlab& SlabOf(size_t table) { return *slabs_[group_of_[table]]; }
  int WidthOf(size_t table) const { return slabs_[group_of_[table]]->layout().row_floats; }

  PullWork PullOf(StepContext* context, CachedKeys TableCachePlan::*share,
                  UploadArena::Array<float> TableOfStep::*rows, bool with_state) const;
  void StartPulls(const std::shared_ptr<StepContext>& context, std::vector<PullWork> pulls);
  void TakeEvicted(StepContext* context, size_t table, std::vector<RowCopy>* gathers);
  void GatherChosen(StepContext* context, size_t table, WrittenRows* written,
                    std::vector<RowCopy>* gathers);
  void PlacePulled(StepContext* context, size_t table, std::vector<RowCopy>* scatters);
  void PlaceBypassedGradients(StepContext* context, size_t table);
  absl::Status PlaceGradients(StepContext* context);
  absl::Status FindCompleteThrough(StepContext* context);
  void CountLookups(const StepContext& context, size_t table);
  bool ChooseUnwritten(double share, uint64_t most_bytes);
  void TakeChosen(size_t table, CachedKeys* keys, UninitializedVector<uint32_t>* counts);
  int64_t WriteAhead(StepContext* context, std::vector<RowCopy>* gathers);
  void FindBadGradient(StepContext* context);
  absl::Status CheckGradients(StepContext* context) const;
  void AddGradients(const StepContext& context, const OfStep& step, PushWork* push) const;
  std::shared_ptr<WrittenBack> ChooseWriteBack();
  void AddPieces(const std::shared_ptr<WrittenBack>& written, PushWork* push) const;
  absl::Status SendPieces(Step step, WrittenBack* written);
  absl::Status FillPiece(size_t piece, StepTransfers* transfers, WrittenBack* written);

  const CachedSourceOptions options_;
  const CacheDistances distances_;
  const double max_unwritten_share_;  // of the rows of a slab
  PsSession* const session_;
  Device* const device_;
  RemoteSource uncached_;  // for evaluation

  std::vector<std::unique_ptr<DeviceSlab>> slabs_;  // [groups]
  std::vector<size_t> group_of_;                    // [tables]
  // Rows chosen to be written: [tables * servers]. Used only within a call.
  std::vector<std::vector<HeldRows::Unwritten>> chosen_;
  // One worker: the gradients of the step under way, of all tables one after the other.
  std::unique_ptr<DeviceBuffer> gradients_;
  size_t gradients_size_ = 0;                   // floats
  std::unique_ptr<DeviceBuffer> bad_gradient_;  // [1] int64: the first one that is not finite

  mutable absl::Mutex mutex_;
  CacheCounts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_H_
