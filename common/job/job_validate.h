// Refuses a job whose values can't be, before anything starts.
#ifndef THERMOCLINE_COMMON_JOB_JOB_VALIDATE_H_
#define THERMOCLINE_COMMON_JOB_JOB_VALIDATE_H_

#include "absl/status/status.h"
#include "common/job/job_source.h"

namespace thermocline {

// Checks every value of `resolved`, the resolved form of `source`, and reports the first that is
// wrong. Knows nothing of files: whether the data is there is for those who read it.
// Errors: kInvalidArgument: "FILE:12: train.batch_size is 0; it must be at least 1".
absl::Status ValidateJob(const Job& resolved, const JobSource& source);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_VALIDATE_H_
