// How hot and cold batches take turns (FAE). A stretch is a run of batches of one kind. A change is
// the place between two stretches of different kinds, where hot rows go to the servers or come
// back. These are pure functions of ScheduleState (proto/checkpoint.proto), so all workers get the
// same results.
#ifndef THERMOCLINE_WORKER_FAE_SCHEDULE_H_
#define THERMOCLINE_WORKER_FAE_SCHEDULE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "worker/data/batch_reader.h"
#include "worker/fae/pack.h"

namespace thermocline {

// Returns the state before the first step.
ScheduleState FirstSchedule(const Job& job, const PackCounts& counts);

// Returns the stretch that begins with `state`. It has `rate` percent of the pass's batches of its
// kind, at least one; or all that are left, if the other kind has none left; and it ends at
// train.max_steps. A stretch without batches means that training is over.
PackStretch StretchOf(const Job& job, const PackCounts& counts, const ScheduleState& state);

// Returns the state after the whole stretch of `state`. If the loss rose since the change before,
// the rate is halved; if it fell falls_to_double times running, the rate is doubled.
//   logloss: the loss of the held-out rows after the stretch; nullopt if they are not scored
//     (fae.schedule.fixed)
ScheduleState NextSchedule(const Job& job, const PackCounts& counts, const ScheduleState& state,
                           std::optional<double> logloss);

// Whether held-out rows are scored after the stretch of `state`. They are if training goes on and
// the rate may change.
bool ScoresAfter(const Job& job, const PackCounts& counts, const ScheduleState& state);

// Goes on from `state` and returns the state whose stretch has `step`, or the last one before at
// whose end held-out rows have to be scored. Errors: kFailedPrecondition (there is none: the state
// is of another pack or schedule).
absl::StatusOr<ScheduleState> ScheduleAt(const Job& job, const PackCounts& counts,
                                         ScheduleState state, Step step);

// Returns the rest of a stretch from `step` on. REQUIRES: `step` is in the stretch, or right behind
// it
PackStretch FromStep(const PackStretch& stretch, Step step);

// Returns how much comes before `rest`, the rest of the stretch of `state`.
BatchReader::Skipped SkippedBefore(const Job& job, const PackCounts& counts,
                                   const ScheduleState& state, const PackStretch& rest,
                                   WorkerRank rank, uint32_t num_workers);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_SCHEDULE_H_
