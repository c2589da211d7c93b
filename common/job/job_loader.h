// Loads a job file: parses it, applies flags, fills in defaults, validates.
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

// A job file is written by hand. A larger file is no job file.
inline constexpr int64_t kMaxJobFileBytes = 16 << 20;

// A job that trains, from its start or on, has to satisfy more (ValidateTraining) than one that is
// scored, exported or inspected. Of a job that only scores, `evaluate` is the task that decides:
// nothing else of it is kept or checked.
enum class JobUse { kRead, kTrain, kScore };

// Reads a job file, removes the fields `cleared`, applies `overrides` ("path.to.field=value", see
// job_override.h), fills in every default and checks the job.
// Errors: kNotFound, kPermissionDenied, kUnavailable (it can't be read now), kInvalidArgument
// (names file, line and field; where a flag alone is to blame, the flag first).
absl::StatusOr<Job> LoadJob(const std::string& path, const std::vector<std::string>& overrides,
                            const std::vector<std::string>& cleared = {},
                            JobUse use = JobUse::kRead);

// The job as it is written there and by the flags, without defaults and unchecked. Errors: as
// above.
absl::StatusOr<Job> ReadWrittenJob(const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   const std::vector<std::string>& cleared);

// LoadJob for a text that errors call `file`.
absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file,
                             const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared = {},
                             JobUse use = JobUse::kRead);

// Returns the flag without which the job would be good: "--set FIELD=VALUE" or "--clear FIELD"; "":
// there is no single one. is_good(flags): whether the job is good with these flags.
std::string FlagToBlame(
    const std::vector<std::string>& overrides, const std::vector<std::string>& cleared,
    const std::function<bool(const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared)>& is_good);

// The job as text, from which ParseJob makes the same job.
std::string JobToText(const Job& job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_LOADER_H_
