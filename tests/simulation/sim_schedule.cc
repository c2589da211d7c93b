#include "tests/simulation/sim_schedule.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/fae/schedule.h"

namespace thermocline {

SimSchedule::SimSchedule(const ScheduleSetup& setup, int64_t num_steps) {
  Fae::Schedule& policy = *job.mutable_fae()->mutable_schedule();
  policy.set_rate(setup.rate);
  policy.set_min_rate(1);
  policy.set_max_rate(100);
  policy.set_falls_to_double(setup.falls_to_double);
  job.mutable_train()->set_max_steps(static_cast<uint64_t>(num_steps));
  job.mutable_train()->set_passes(static_cast<uint32_t>(num_steps));  // More than there are.
  counts.batches[0] = setup.cold_batches;
  counts.batches[1] = setup.hot_batches;
}

std::string SimSchedule::DescribeDifference(const ScheduleState& state,
                                            const SequentialModel& model, uint64_t num_keys) const {
  ScheduleState expected = FirstSchedule(job, counts);
  while (expected.first_step() < state.first_step()) {
    std::optional<double> score;
    if (ScoresAfter(job, counts, expected)) {
      const int64_t next = NextSchedule(job, counts, expected, std::nullopt).first_step();
      score = model.ScoreAfter(Step(next - 1), num_keys);
    }
    expected = NextSchedule(job, counts, expected, score);
  }
  if (expected.SerializeAsString() == state.SerializeAsString()) return "";
  return absl::StrCat("the stretch is ", state.ShortDebugString(), ", and should be ",
                      expected.ShortDebugString());
}

absl::StatusOr<SimStretch> SimStretch::At(const SimSchedule& schedule,
                                          const std::optional<ScheduleState>& state,
                                          Step start_step) {
  ASSIGN_OR_RETURN(
      ScheduleState at,
      ScheduleAt(schedule.job, schedule.counts,
                 state.has_value() ? *state : FirstSchedule(schedule.job, schedule.counts),
                 start_step));
  return SimStretch(&schedule, std::move(at));
}

bool SimStretch::EndsWith(Step step) const {
  const PackStretch stretch = StretchOf(schedule_->job, schedule_->counts, state_);
  return step >= stretch.first_step && step + 1 == stretch.first_step + stretch.num_batches;
}

bool SimStretch::IsScored() const { return ScoresAfter(schedule_->job, schedule_->counts, state_); }

ScheduleState SimStretch::Next(std::optional<double> logloss) const {
  return NextSchedule(schedule_->job, schedule_->counts, state_, logloss);
}

uint64_t SimStretch::BatchOf(Step step) const {
  const PackStretch stretch = StretchOf(schedule_->job, schedule_->counts, state_);
  const int64_t batch = stretch.first_batch + (step - stretch.first_step);
  return Mix64(Mix64(static_cast<uint64_t>(batch) * 2 + (stretch.is_hot ? 1 : 0)) ^ stretch.pass);
}

}  // namespace thermocline
