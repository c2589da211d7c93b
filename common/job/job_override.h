// Changes to one field of a job from the command line: `--set train.batch_size=2048`,
// `--clear cache`.
#ifndef THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_
#define THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

class Job;

// Applies "path.to.field=value" and returns the path.
//
// An element of a repeated field is `name[i]`; the index one past the end appends. The value is
// written as in a job file: a number, true or false, an enum's name, text (quotes may be left out),
// a list `[512, 256]`, which replaces the whole field, or a message `{...}`.
//
// Errors: kInvalidArgument (names the assignment, the path and what was wrong).
absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment, Job* job);

// Takes the field at `path` out of the job: a value, a message or a whole list. One that is not
// there may be taken out too.
//
// Errors: kInvalidArgument (names the path and what was wrong; an element of a list stays).
absl::Status ClearField(absl::string_view path, Job* job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_
