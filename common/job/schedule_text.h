// The state of a job's schedule of hot and cold batches as one line of text, for a worker's
// --schedule and workers' reports.
#ifndef THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_
#define THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// ParseSchedule returns the same state, to the last bit.
std::string ScheduleToText(const ScheduleState& state);

// Errors: kInvalidArgument (malformed, or numbers below 0).
absl::StatusOr<ScheduleState> ParseSchedule(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_
