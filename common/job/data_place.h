// A place in the data of a job whose batches have an order of their own (BatchOrder in
// worker/data): where training goes on. Checkpoints, RPCs and the launcher carry it as bytes. What
// the bytes mean only the order knows, and those who tell users of hot and cold batches (Job.fae):
// they are a ScheduleState. A job without such an order has none: "".
#ifndef THERMOCLINE_COMMON_JOB_DATA_PLACE_H_
#define THERMOCLINE_COMMON_JOB_DATA_PLACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// Errors of ReadDataPlace: kDataLoss (the bytes are no place).
std::string MakeDataPlace(const ScheduleState& state);
absl::StatusOr<ScheduleState> ReadDataPlace(absl::string_view place);

// The first step that is trained from the place on; kNoStep: the bytes are no place.
Step FirstStepAt(absl::string_view place);

// As one line of text: in a worker's --schedule, in what workers report, and in metrics.jsonl.
// ParseDataPlace gives the same bytes back. Errors: kInvalidArgument (no such text; numbers below
// 0).
std::string DataPlaceToText(absl::string_view place);
absl::StatusOr<std::string> ParseDataPlace(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_DATA_PLACE_H_
