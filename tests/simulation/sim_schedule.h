// How the hot and cold batches of a simulated job take turns: by the real schedule
// (worker/fae/schedule.h), whose losses are the model's scores.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_SCHEDULE_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_setup.h"
#include "worker/fae/pack.h"

namespace thermocline {

struct SimSchedule {
  SimSchedule(const ScheduleSetup& setup, int64_t num_steps);

  // Says in what `state` differs from what follows from the model's scores; "": in nothing.
  // REQUIRES: the model has the steps before the stretch.
  std::string DescribeDifference(const ScheduleState& state, const SequentialModel& model,
                                 uint64_t num_keys) const;

  Job job;
  PackCounts counts;
};

// The stretch that a worker trains.
class SimStretch {
 public:
  // The one that `start_step` lies in, or ends before; `state`: none, as the schedule begins.
  // Errors: as ScheduleAt.
  static absl::StatusOr<SimStretch> At(const SimSchedule& schedule,
                                       const std::optional<ScheduleState>& state, Step start_step);

  const ScheduleState& state() const { return state_; }
  bool EndsWith(Step step) const;
  // Whether the model is scored when it has ended.
  bool IsScored() const;
  ScheduleState Next(std::optional<double> logloss) const;
  void GoTo(const ScheduleState& next) { state_ = next; }
  // Names the batch of a step of this stretch: other batches have other data.
  uint64_t BatchOf(Step step) const;

 private:
  SimStretch(const SimSchedule* schedule, ScheduleState state)
      : schedule_(schedule), state_(std::move(state)) {}

  const SimSchedule* schedule_;
  ScheduleState state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_SCHEDULE_H_
