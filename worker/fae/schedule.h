// How hot and cold batches take turns (FAE). A stretch is a run of batches of one kind; between two
// stretches of different kinds hot rows go to the servers, or come back: a change. Pure functions
// of ScheduleState (proto/checkpoint.proto), so every worker comes to the same.
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

// Before the first step.
ScheduleState FirstSchedule(const Job& job, const PackCounts& counts);

// The stretch that begins with `state`: `rate` percent of the pass's batches of the kind, at least
// one, or all that are left where none of the other kind are; within train.max_steps. No batches:
// training is over.
PackStretch StretchOf(const Job& job, const PackCounts& counts, const ScheduleState& state);

// The state after the whole stretch of `state`. logloss: of the held-out rows scored then; none
// where they are not scored (fae.schedule.fixed). If it rose since the change before, the rate is
// halved; if it fell falls_to_double times running, doubled.
ScheduleState NextSchedule(const Job& job, const PackCounts& counts, const ScheduleState& state,
                           std::optional<double> logloss);

// Whether held-out rows are scored after the stretch of `state`: training goes on, and the rate may
// change.
bool ScoresAfter(const Job& job, const PackCounts& counts, const ScheduleState& state);

// The state whose stretch has `step`, or ends before it where held-out rows have to be scored
// first; `state` is one before. Errors: kFailedPrecondition (there is none: another pack, or
// schedule).
absl::StatusOr<ScheduleState> ScheduleAt(const Job& job, const PackCounts& counts,
                                         ScheduleState state, Step step);

// What is left of a stretch from `step` on. REQUIRES: it is within, or at the end.
PackStretch FromStep(const PackStretch& stretch, Step step);

// What lies before `rest`, which is what is left of the stretch of `state`.
BatchReader::Skipped SkippedBefore(const Job& job, const PackCounts& counts,
                                   const ScheduleState& state, const PackStretch& rest,
                                   WorkerRank rank, uint32_t num_workers);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_SCHEDULE_H_
