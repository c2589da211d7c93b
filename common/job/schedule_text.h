// Where the hot and cold batches of a job stand, as one line of text: in a worker's --schedule, and
// in what workers report.
#ifndef THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_
#define THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// ParseSchedule gives the same back, to the last bit.
std::string ScheduleToText(const ScheduleState& state);

// Errors: kInvalidArgument (no such text; numbers below 0).
absl::StatusOr<ScheduleState> ParseSchedule(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_SCHEDULE_TEXT_H_
