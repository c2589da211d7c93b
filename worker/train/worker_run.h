// The parts of one worker's run, which training and evaluation share.
#ifndef THERMOCLINE_WORKER_TRAIN_WORKER_RUN_H_
#define THERMOCLINE_WORKER_TRAIN_WORKER_RUN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/data/batch_order.h"
#include "worker/data/dataset.h"
#include "worker/data/kept_rows.h"
#include "worker/dense/dense_blocks.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_slices.h"
#include "worker/exchange/exchange.h"
#include "worker/fae/hot_and_cold.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_pipeline.h"
#include "worker/session/ps_session.h"
#include "worker/train/model_process.h"
#include "worker/train/model_step.h"
#include "worker/train/progress.h"
#include "worker/train/script_run.h"
#include "worker/train/trainer.h"
#include "worker/train/worker.h"

namespace thermocline {

// Members are destroyed before those they point to. Not thread-safe.
struct WorkerRun {
  // All that is pointed to outlives it. script: null: the worker computes the model.
  WorkerRun(const Job& job, const WorkerOptions& options, Dataset* dataset,
            WorkerDevice worker_device, ScriptRun* script, Transport* transport,
            Scheduler* scheduler);
  // Waits for the answers to the session's last probes, which a wait for the script may have begun.
  ~WorkerRun();

  // Joins the other workers, if any; then makes what may need them. cached: null: no rows are kept,
  // or the hot ones are.
  absl::Status JoinOthers(const RowSourceOptions* cached);
  // There was memory for everything that is made at the start.
  absl::Status CheckMemory();
  // Waits until no other worker needs this one, which has trained up to `last`.
  absl::Status LeaveOthers(Step last);
  // The error of training; one of the exchange itself marked as the loss of another worker.
  absl::Status MarkLoss(const absl::Status& error) const;
  WorkerProgress::Watched Watched() const;

  // Makes `order`. Errors: HotAndCold::Open's, HotRows::Make's; kInvalidArgument (the hot rows
  // don't fit).
  absl::Status OpenOrder();
  // Plans the batches from the order's place to its next break.
  absl::StatusOr<StepPipeline*> OpenPipeline();
  // Has the stats show how hot and cold batches stand, if there are any.
  void ShowBatches(WorkerProgress* progress) const;
  // Sets held_out to begin with the held-out rows; rows > 0: with the batches that have the first
  // so many, which are kept for the next time.
  absl::Status OpenHeldOut(int64_t rows);

  const Job& job;
  const WorkerOptions& options;
  Dataset* const dataset;
  ScriptRun* const script;
  ModelProcess own_process;
  ModelProcess* const model_process;  // The script, or the worker's own.
  const JobTables tables;
  const std::string device_name, device_warning;
  const std::unique_ptr<Device> device;
  // The dense tensors, and where the model has them; a script has none.
  std::unique_ptr<DenseBlocks> blocks;
  DenseArenas arenas;
  std::unique_ptr<ModelStep> model;
  PsSession session;
  std::unique_ptr<Exchange> exchange;                // Null: there is none.
  std::atomic<Exchange*> exchange_to_fail{nullptr};  // The same, for threads that it starts.
  std::unique_ptr<DenseSlices> slices;               // Null: their home is another.
  std::unique_ptr<DenseParameters> dense;
  std::unique_ptr<BatchOrder> order;    // Null: nothing is trained here.
  HotAndCold* hot_and_cold = nullptr;   // The order of a job with `fae`; null: it is another.
  std::unique_ptr<HotRows> hot_rows;    // The rows of its hot batches; null: there are none.
  std::optional<KeptRows> scored_rows;  // The held-out rows that are scored for the order.
  std::unique_ptr<RowSource> source;
  PipelineTimes pipeline_times;
  ThreadPool planning_threads;
  // Plan the held-out batches where this worker evaluates while training's pipeline plans ahead;
  // null: it evaluates, if at all, when that pipeline has ended, and planning_threads do.
  std::unique_ptr<ThreadPool> evaluation_threads;
  // The batches that read hot rows alone have a pipeline of their own; held_out is for evaluations.
  // Each is null until it is used first, and kept then.
  std::unique_ptr<StepPipeline> pipeline, hot_pipeline, held_out;
  std::unique_ptr<Trainer> trainer;

 private:
  PsSessionOptions SessionWithExchange();
  std::unique_ptr<DenseParameters> MakeDense();
  BatchPlanner PlannerOfModel() const;
  std::unique_ptr<StepPipeline> MakeTraining(std::unique_ptr<BatchReader> reader, bool is_hot);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_WORKER_RUN_H_
