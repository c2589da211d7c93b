#include "worker/train/hot_and_cold.h"

#include <utility>

#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "worker/fae/schedule.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<HotAndCold>> HotAndCold::Open(const Job& job,
                                                             const JobTables& tables,
                                                             const WorkerOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, Pack::Open(job));
  std::unique_ptr<HotAndCold> opened(new HotAndCold(job, options, std::move(pack)));
  ASSIGN_OR_RETURN(const uint64_t budget_bytes, ParseByteSize(job.fae().budget()));
  ASSIGN_OR_RETURN(opened->hot_rows_,
                   HotRows::Make(tables, opened->pack_->hot_set(), budget_bytes, "fae.budget"));
  ASSIGN_OR_RETURN(const uint64_t room_bytes, ParseByteSize(job.cluster().max_pending_size()));
  RETURN_IF_ERROR(opened->hot_rows_->CheckWriteBack(ClusterMap(job.cluster().servers()), room_bytes,
                                                    DensePushBytes(job), "fae.budget"));
  const PackCounts& counts = opened->pack_->counts();
  ASSIGN_OR_RETURN(
      opened->state_,
      ScheduleAt(job, counts,
                 options.schedule.has_value() ? *options.schedule : FirstSchedule(job, counts),
                 options.start_step));
  opened->begin_ = options.start_step;
  return opened;
}

Trainer::Stretch HotAndCold::Describe() const {
  const ScheduleState next = Next(std::nullopt);
  Trainer::Stretch stretch;
  stretch.is_last = StretchOf(job_, pack_->counts(), next).num_batches == 0;
  stretch.ends_pass = next.pass() > state_.pass();
  stretch.pass = state_.pass() + 1;
  return stretch;
}

std::unique_ptr<BatchReader> HotAndCold::OpenReader() const {
  const PackStretch rest = FromStep(StretchOf(job_, pack_->counts(), state_), begin_);
  const uint32_t workers = job_.cluster().workers();
  return pack_->OpenReader(
      job_, rest, SkippedBefore(job_, pack_->counts(), state_, rest, options_.rank, workers),
      options_.rank, workers);
}

bool HotAndCold::IsScored() const { return ScoresAfter(job_, pack_->counts(), state_); }

ScheduleState HotAndCold::Next(std::optional<double> logloss) const {
  return NextSchedule(job_, pack_->counts(), state_, logloss);
}

void HotAndCold::GoTo(const ScheduleState& next) {
  state_ = next;
  begin_ = Step(next.first_step());
}

}  // namespace thermocline
