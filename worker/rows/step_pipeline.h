// Reads and plans batches ahead of the compute, in a thread of its own. Where rows are held, the
// plan of a step's rows is made once the batches of its window are there, and the row indices of
// the features are those of what the source gives the step (row_planner.h). A step is handed out
// when it is known what comes behind it (StepContext::behind), so at least one more stays here.
//
// A context is reused when its last holder releases it, on any thread; contexts, transfers and the
// thread also outlast a reader, if another follows it (Restart).
#ifndef THERMOCLINE_WORKER_ROWS_STEP_PIPELINE_H_
#define THERMOCLINE_WORKER_ROWS_STEP_PIPELINE_H_

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/thread_pool.h"
#include "common/base/timing.h"
#include "worker/data/batch_reader.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// Where the time of planning ahead goes.
struct PipelineTimes {
  StageTimer read;  // waiting for the reader
  StageTimer plan;
  StageTimer cache;  // planning which rows are held
};

struct StepPipelineOptions {
  Device* device = nullptr;  // outlives the contexts; used in Next()
  // Plan the tables of a batch in parallel. Outlive the pipeline. Used by its thread only, until
  // Next() has ended, and maybe by its planner.
  ThreadPool* threads = nullptr;
  int depth = 1;  // contexts in the ring, at least one more than are held at a time
  // Null: every step pulls its rows. Its window is `window_steps` more contexts; without one there
  // is one more.
  std::unique_ptr<RowPlanner> planner;
  int window_steps = 0;
  Exchange* exchange = nullptr;    // The planner's; outlives the pipeline. Null: it has none.
  PipelineTimes* times = nullptr;  // Outlives the pipeline; null: it is not wanted.
};

class StepPipeline {
 public:
  StepPipeline(std::unique_ptr<BatchReader> reader, const BatchPlanner& planner,
               StepPipelineOptions options);
  // REQUIRES: no context is held any more.
  ~StepPipeline();
  StepPipeline(const StepPipeline&) = delete;
  StepPipeline& operator=(const StepPipeline&) = delete;

  // Goes on with the batches of another reader. A pipeline of hot batches is kept so while cold
  // ones are trained: memory that a device copies from is costly to allocate. REQUIRES: Next() has
  // returned null; no context is held.
  void Restart(std::unique_ptr<BatchReader> reader);

  // The next planned step, begun, or null after the last. Errors: the reader's and the
  // planner's, in their place.
  absl::StatusOr<std::shared_ptr<StepContext>> Next();
  // Whether Next() returns at once.
  bool NextIsReady() const;

  // The present reader's. Not to be called while Restart() runs.
  BatchReader::Progress progress() const { return reader_->progress(); }
  BatchReader::Skipped skipped() const { return reader_->skipped(); }  // Once Next() has returned.

 private:
  void Run();
  StepContext* TakeIdle();
  absl::StatusOr<bool> Fill(StepContext* context);
  Step TracedStep(const StepContext& context) const;
  void PlanBatch(StepContext* context);
  absl::StatusOr<bool> Admit(StepContext* context);
  absl::Status PassOnWindow(size_t steps_that_stay, StepBehind::Kind behind_all);
  void Recycle(StepContext* context);

  Device* const device_;
  std::unique_ptr<BatchReader> reader_;
  const size_t window_steps_;  // At least 1.

  // Used only by the thread and its helpers.
  ThreadPool* const threads_;
  std::vector<BatchPlanner> planners_;  // one for each thread
  const std::unique_ptr<RowPlanner> row_planner_;
  Exchange* const exchange_;
  std::deque<StepContext*> window_;  // admitted, not planned
  PipelineTimes own_times_;
  PipelineTimes* const times_;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<StepContext>> ring_;
  std::vector<StepContext*> idle_ ABSL_GUARDED_BY(mutex_);
  // As many as were ever in use together; the one used last is taken first.
  std::vector<std::unique_ptr<StepTransfers>> idle_transfers_ ABSL_GUARDED_BY(mutex_);
  TransferSizes largest_transfers_ ABSL_GUARDED_BY(mutex_);
  std::deque<StepContext*> ready_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more of this reader will become ready
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_STEP_PIPELINE_H_
