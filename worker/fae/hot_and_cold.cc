#include "worker/fae/hot_and_cold.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/data_place.h"
#include "worker/fae/schedule.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<HotAndCold>> HotAndCold::Open(const Job& job, WorkerRank rank,
                                                             Step start_step,
                                                             absl::string_view place) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, Pack::Open(job));
  std::unique_ptr<HotAndCold> opened(new HotAndCold(job, rank, start_step, std::move(pack)));
  const PackCounts& counts = opened->pack_->counts();
  ScheduleState before = FirstSchedule(job, counts);
  if (!place.empty()) {
    ASSIGN_OR_RETURN(before, ReadDataPlace(place));
  }
  ASSIGN_OR_RETURN(opened->state_, ScheduleAt(job, counts, before, start_step));
  return opened;
}

absl::StatusOr<std::unique_ptr<BatchReader>> HotAndCold::OpenReader() {
  const PackStretch rest = FromStep(StretchOf(job_, pack_->counts(), state_), begin_);
  const uint32_t workers = job_.cluster().workers();
  return pack_->OpenReader(job_, rest,
                           SkippedBefore(job_, pack_->counts(), state_, rest, rank_, workers),
                           rank_, workers);
}

BatchOrder::Break HotAndCold::next_break() const {
  const ScheduleState next = NextSchedule(job_, pack_->counts(), state_, std::nullopt);
  Break found;
  found.ends_training = StretchOf(job_, pack_->counts(), next).num_batches == 0;
  found.ends_pass = next.pass() > state_.pass();
  found.pass = found.ends_training ? job_.train().passes() : state_.pass() + 1;
  if (ScoresAfter(job_, pack_->counts(), state_)) {
    found.is_scored = true;
    found.scored_rows = static_cast<int64_t>(job_.fae().schedule().scored_rows());
    found.scored_for = "`fae` with a schedule that is not `fixed`";
  }
  return found;
}

std::string HotAndCold::PlaceBehind(std::optional<double> logloss) const {
  return MakeDataPlace(NextSchedule(job_, pack_->counts(), state_, logloss));
}

absl::Status HotAndCold::GoTo(absl::string_view place) {
  ASSIGN_OR_RETURN(const ScheduleState next, ReadDataPlace(place));
  const Step behind(NextSchedule(job_, pack_->counts(), state_, std::nullopt).first_step());
  if (next.first_step() != behind.value()) {
    return absl::InternalError(absl::StrCat("the batches of step ", behind.value(),
                                            " were to be decided on, and those of step ",
                                            next.first_step(), " were"));
  }
  if (next.is_hot() != state_.is_hot()) ++changes_;
  state_ = next;
  begin_ = behind;
  return absl::OkStatus();
}

HotStats HotAndCold::Stats() const {
  HotStats stats;
  stats.set_is_hot(state_.is_hot());
  stats.set_rate(state_.rate());
  stats.set_changes(changes_);
  stats.set_hot_rows(static_cast<uint64_t>(pack_->hot_set().num_rows()));
  return stats;
}

}  // namespace thermocline
