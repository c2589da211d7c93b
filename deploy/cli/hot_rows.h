// Finds the hot rows of a job, and makes batches of the samples that read no others, before any
// server starts (thermocline-pack). A run that goes on finds both where the one before left them.
#ifndef THERMOCLINE_DEPLOY_CLI_HOT_ROWS_H_
#define THERMOCLINE_DEPLOY_CLI_HOT_ROWS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/signal_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

// Runs thermocline-pack, of `bin_dir` ("": as FindProgram), to its end, shows on the descriptor
// `fd` how far it is, and what it found. Returns its last line, for the summary. REQUIRES:
// CountsHotRows, and it names its calibration.directory. Errors: those of ReportingProgram::Run;
// kNotFound (no such program).
absl::StatusOr<nlohmann::ordered_json> FindHotRows(const Job& job, const std::string& bin_dir,
                                                   SignalWatch* signals, int fd);

// A run trains from one pack. Notes in the run directory which one that is, of what FindHotRows
// returned; where `goes_on` from a checkpoint, the pack has to be the one noted. Errors:
// kInvalidArgument (it is another), kUnavailable (can't be noted).
absl::Status KeepPackOfRun(const RunDirectory& directory, bool goes_on,
                           const nlohmann::ordered_json& found);

// Notes in metrics.jsonl that the run ended before it began to train, and why, for
// `thermocline stats`.
void NoteFailedPacking(const RunDirectory& directory, const absl::Status& why);

// With which code a command ends where that failed: kExitUsage where the job or its data are to
// blame.
int ExitCodeOfHotRows(const absl::Status& why);

// What FindHotRows returned, in a line: "hot rows: 12,345 ...".
std::string DescribeHotRows(const nlohmann::ordered_json& found);

// thermocline calibrate's report: a line for each budget and share of the rows, from
// thermocline-pack's "calibrations"; what kept one from being made; and the tables of the last.
std::string RenderCalibrations(const nlohmann::ordered_json& calibrations);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_HOT_ROWS_H_
