// A worker of the randomized tests of a RowSource: does what a trainer does
// (worker/train/trainer.cc), with gradients of the test's own, and compares every row that it reads
// with the model.
#ifndef THERMOCLINE_WORKER_ROWS_TESTING_HOT_RANK_H_
#define THERMOCLINE_WORKER_ROWS_TESTING_HOT_RANK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/thread_pool.h"
#include "kernels/device.h"
#include "worker/exchange/exchange.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_source.h"
#include "worker/rows/testing/hot_trace.h"
#include "worker/rows/testing/merging_servers.h"
#include "worker/session/ps_session.h"

namespace thermocline {

class HotRank {
 public:
  // All that is pointed or referred to outlives it. `exchange` may be null.
  HotRank(const HotTrace& trace, const HotModel& model, const HotRows& rows, uint32_t rank,
          std::unique_ptr<Device> device, MergingServers* servers, Exchange* exchange,
          Scheduler* scheduler);

  absl::Status Run();
  // Ends its waits.
  void Fail(const absl::Status& why);

  // Keys that it looked up in cold steps, once a step; and the loads of hot rows.
  int64_t cold_keys() const { return cold_keys_; }
  int64_t hot_keys() const { return hot_keys_; }
  CacheCounts counts() const { return source_.slabs()->counts(); }
  int fetch_ahead() const { return source_.fetch_ahead(); }

 private:
  std::vector<TableId> TableIds() const;
  std::vector<int32_t> FeatureTables() const;
  PsSessionOptions SessionOptions() const;
  RowSourceOptions SourceOptions() const;
  std::shared_ptr<StepContext> TakeContext(bool is_hot);
  absl::Status TrainStretch(const std::vector<PlannedStep>& stretch, Step first);
  absl::Status FetchAhead(Step first, RowPlanner* planner, size_t queued_beyond);
  void FillBatch(const Lookups& lookups, Batch* batch) const;
  absl::Status TrainStep(const std::shared_ptr<StepContext>& context, const PlannedStep& planned,
                         Step first, RowPlanner* planner);
  absl::Status FinishPipelined(Step first, RowPlanner* planner, size_t queued_beyond);
  absl::Status StartPush(const std::shared_ptr<StepContext>& context);
  absl::Status CheckRows(const StepContext& context);
  void SetGradients(const StepContext& context);

  const HotTrace& trace_;
  const HotModel& model_;
  const HotRows& rows_;
  const uint32_t rank_;
  const std::unique_ptr<Device> device_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<StepContext>> contexts_;  // They have events of the device.
  std::vector<StepContext*> idle_[2];                   // [cold, hot]
  const std::unique_ptr<Transport> transport_;
  PsSession session_;
  Exchange* const exchange_;
  BatchPlanner planner_;
  ThreadPool threads_{1};
  RowSource source_;
  const std::vector<PlannedStep>* stretch_ = nullptr;
  size_t next_ = 0;
  std::deque<std::shared_ptr<StepContext>> fetched_;
  std::shared_ptr<StepContext> pipelined_;
  int64_t cold_keys_ = 0, hot_keys_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_TESTING_HOT_RANK_H_
