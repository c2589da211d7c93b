// What a command shows while it runs, to a reader that may be slow: a pager may stop reading.
#ifndef THERMOCLINE_DEPLOY_CLI_CONSOLE_H_
#define THERMOCLINE_DEPLOY_CLI_CONSOLE_H_

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/processes/reporting_program.h"
#include "deploy/processes/signal_watch.h"
#include "deploy/runner/job_runner.h"
#include "proto/job.pb.h"

namespace thermocline {

// Writes to a file descriptor; a request to stop ends a write that waits for the reader.
// Not thread-safe.
class Console {
 public:
  // `signals` must outlive this object; `fd` is not closed.
  Console(int fd, SignalWatch* signals) : fd_(fd), signals_(*signals) {}

  bool is_terminal() const;

  // Writes all of `text`, however long the reader takes. False where it is gone, or where a request
  // to stop came first; one from before the call doesn't count.
  bool Write(absl::string_view text);

  // Writes `text` if there is room for it now; otherwise drops it and returns false.
  // REQUIRES: text.size() <= PIPE_BUF, which is what a pipe that is ready always takes.
  bool TryWrite(absl::string_view text);

 private:
  const int fd_;
  SignalWatch& signals_;
};

// A scan of checkpoints that draws a progress bar on the descriptor `fd` and that a request to stop
// ends with kCancelled. The bar goes with the scan. `signals` must outlive it.
ByteScan ScanOnConsole(int fd, SignalWatch* signals);

// Runs a program (deploy/processes/reporting_program.h) and shows its progress on the descriptor
// `fd`. Returns its last line. Errors: those of ReportingProgram::Run.
absl::StatusOr<nlohmann::ordered_json> RunProgramOnConsole(const ProgramCommand& command,
                                                           SignalWatch* signals, int fd);

// Runs the job and shows its progress on the descriptor `fd`. Drops what a slow reader has no room
// for: the job never waits for it.
absl::StatusOr<JobResult> RunJobOnConsole(const Job& job, const JobOptions& options,
                                          const RunDirectory& directory, SignalWatch* signals,
                                          int fd = STDOUT_FILENO);

// Prints "thermocline: MESSAGE" to standard error and returns `exit_code`.
int Complain(absl::string_view message, int exit_code);
// Prints the same; a request to stop ends it.
void ReportFailure(absl::string_view message, SignalWatch* signals);
// The same of a command that reads or computes; returns its exit code.
int ReportFailure(const absl::Status& why, SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CONSOLE_H_
