// The files that a job names: where they are, whether they can be read, and which of their rows a
// run scores. The functions take a resolved job, or its data.
#ifndef THERMOCLINE_DEPLOY_CLI_JOB_FILES_H_
#define THERMOCLINE_DEPLOY_CLI_JOB_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace thermocline {

// The run directory's job file must mean the same from any working directory.
void MakePathsAbsolute(Job* job);

// Errors: kNotFound, kPermissionDenied, kInvalidArgument (a folder where files are wanted or the
// other way round; held-out rows from two places), each with the field and the path.
absl::Status CheckJobFiles(const Job& job);

// Whether this machine has the program of a script (Job.worker), which the worker starts. Errors:
// FindCommand's, with the field.
absl::Status CheckScriptProgram(const Job& job);

// Sets Job.data_files: looks at each file, with a read at either end. Errors: those of finding and
// reading them; the field stays empty then.
absl::Status FindDataFiles(Job* job);

// All rows of `data` become the held-out ones.
void ScoreAllRows(Data* data);

// Which rows a run that only scores them scores: "all rows of 'day_23.gz'".
std::string DescribeScoredRows(const Data& data);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_JOB_FILES_H_
