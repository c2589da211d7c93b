// From a job file to a job that can run: parse, override, fill in defaults, validate.
#ifndef THERMOCLINE_COMMON_JOB_JOB_LOADER_H_
#define THERMOCLINE_COMMON_JOB_JOB_LOADER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace thermocline {

// A job file is written by hand; above this it is some other file.
inline constexpr int64_t kMaxJobFileBytes = 16 << 20;

// What a job is read for. A job that trains also needs room for its dense parameters in each server
// (cluster.max_pending_size); one that is scored, exported or looked at does not.
enum class JobUse { kRead, kTrain };

// Reads a job file, takes out the fields `cleared`, applies `overrides` ("path.to.field=value", see
// job_override.h) and returns the job with every default filled in, checked.
// Errors: kNotFound, kPermissionDenied, kUnavailable (it can't be read now), kInvalidArgument
// (names file, line and field; where a flag alone is to blame, the flag first).
absl::StatusOr<Job> LoadJob(const std::string& path, const std::vector<std::string>& overrides,
                            const std::vector<std::string>& cleared = {},
                            JobUse use = JobUse::kRead);

// The same for a text that errors call `file`.
absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file,
                             const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared = {},
                             JobUse use = JobUse::kRead);

// Which flag spoils a job that is good without it: "--set FIELD=VALUE" or "--clear FIELD"; "": none
// does alone. `is_good` tells of the flags that are left.
std::string FlagToBlame(
    const std::vector<std::string>& overrides, const std::vector<std::string>& cleared,
    const std::function<bool(const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared)>& is_good);

// The job as text; ParseJob gives the same job back.
std::string JobToText(const Job& job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_LOADER_H_
