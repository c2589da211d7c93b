// A worker's way through the stretches of a job with hot and cold batches (Job.fae).
#ifndef THERMOCLINE_WORKER_TRAIN_HOT_AND_COLD_H_
#define THERMOCLINE_WORKER_TRAIN_HOT_AND_COLD_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "worker/data/batch_reader.h"
#include "worker/fae/pack.h"
#include "worker/rows/hot_rows.h"
#include "worker/train/trainer.h"
#include "worker/train/worker.h"

namespace thermocline {

// Not thread-safe.
class HotAndCold {
 public:
  // Begins with the stretch that options.start_step is in, or at the end of. `job`, `tables` and
  // `options` outlive it. Errors: as Pack::Open, HotRows::Make and CheckWriteBack, ScheduleAt.
  static absl::StatusOr<std::unique_ptr<HotAndCold>> Open(const Job& job, const JobTables& tables,
                                                          const WorkerOptions& options);

  const HotRows& hot_rows() const { return *hot_rows_; }

  // The stretch at hand, but for its pipeline; and a reader of what is left of it.
  Trainer::Stretch Describe() const;
  bool is_hot() const { return state_.is_hot(); }
  double rate() const { return state_.rate(); }
  std::string pack_digest() const { return pack_->digest(); }
  int64_t num_hot_rows() const { return pack_->hot_set().num_rows(); }
  std::unique_ptr<BatchReader> OpenReader() const;

  // Whether held-out rows are scored when it has ended; and the state behind it, with the loss
  // where they are.
  bool IsScored() const;
  ScheduleState Next(std::optional<double> logloss) const;
  // Goes over to the stretch of `next`.
  void GoTo(const ScheduleState& next);

 private:
  HotAndCold(const Job& job, const WorkerOptions& options, std::shared_ptr<const Pack> pack)
      : job_(job), options_(options), pack_(std::move(pack)) {}

  const Job& job_;
  const WorkerOptions& options_;
  const std::shared_ptr<const Pack> pack_;
  std::unique_ptr<HotRows> hot_rows_;
  ScheduleState state_;  // Of the stretch at hand.
  Step begin_;           // What is left of it begins here.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_HOT_AND_COLD_H_
