// The order of a job with hot and cold batches (Job.fae): stretches of batches of one kind follow
// each other (schedule.h), with a break between two of them. The kinds take turns, but where a pass
// ends.
#ifndef THERMOCLINE_WORKER_FAE_HOT_AND_COLD_H_
#define THERMOCLINE_WORKER_FAE_HOT_AND_COLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "proto/parameter_server.pb.h"
#include "worker/data/batch_order.h"
#include "worker/data/batch_reader.h"
#include "worker/fae/pack.h"

namespace thermocline {

// Not thread-safe.
class HotAndCold : public BatchOrder {
 public:
  // Begins with the stretch that start_step lies in, or ends before. place: where the data went on
  // at a checkpoint of an earlier step; "": as the job says. `job` outlives it. Errors: as
  // Pack::Open, ScheduleAt; kDataLoss (no place).
  static absl::StatusOr<std::unique_ptr<HotAndCold>> Open(const Job& job, WorkerRank rank,
                                                          Step start_step, absl::string_view place);

  absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader() override;
  bool reads_hot_rows() const override { return state_.is_hot(); }
  Break next_break() const override;
  std::string PlaceBehind(std::optional<double> logloss) const override;
  absl::Status GoTo(absl::string_view place) override;

  const Pack& pack() const { return *pack_; }
  HotStats Stats() const;

 private:
  HotAndCold(const Job& job, WorkerRank rank, Step start_step, std::shared_ptr<const Pack> pack)
      : job_(job), rank_(rank), pack_(std::move(pack)), begin_(start_step) {}

  const Job& job_;
  const WorkerRank rank_;
  const std::shared_ptr<const Pack> pack_;
  ScheduleState state_;   // The stretch at hand begins with it.
  Step begin_;            // The first step of the stretch that is trained here.
  uint64_t changes_ = 0;  // Since this order was opened.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_HOT_AND_COLD_H_
