// A program that does the work of one command, such as thermocline-predict: it takes what it needs
// from its flags, and reports in JSON lines.
//
// A line is {"event": "progress", "rows", "fraction", "seconds"}, with "activity" where it does one
// thing after the other, {"event": "warning", "text"}, and last {"event": "done", ...} with what it
// found, or {"event": "failed", "message"}.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_REPORTING_PROGRAM_H_
#define THERMOCLINE_DEPLOY_PROCESSES_REPORTING_PROGRAM_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/processes/signal_watch.h"
#include "deploy/processes/supervisor.h"
#include "deploy/report/progress_bar.h"

namespace thermocline {

// What is run, and how it is called.
struct ProgramCommand {
  std::string path;                    // As FindProgram returns it.
  std::vector<std::string> arguments;  // After "--progress_fd=3", and "--job=FILE" of `job`.
  std::string job;                     // The text of a job file; "": it takes none.
  std::string activity;                // What it does, in the words of a progress bar: "scoring".
};

// Runs one program to its end. Not thread-safe; lives on the main thread.
class ReportingProgram {
 public:
  // Called during Run. `progress` counts rows.
  struct Observer {
    std::function<void(const PhaseProgress& progress)> on_progress;
    std::function<void(absl::string_view text)> on_warning;
  };

  // `signals` must outlive this object.
  ReportingProgram(SignalWatch* signals, Observer observer)
      : signals_(*signals), supervisor_(signals), observer_(std::move(observer)) {}

  // Returns the line of the event "done". Errors: kCancelled (a request to stop, after which the
  // program is gone), kInvalidArgument (it failed with kExitUsage: its input can't be used),
  // kUnavailable (it failed otherwise, or ended without a last line), those of ChildProcess::Start.
  // REQUIRES: called once
  absl::StatusOr<nlohmann::ordered_json> Run(const ProgramCommand& command);

 private:
  absl::StatusOr<ProcessEnd> AwaitEnd();
  void Take(absl::string_view data);
  void TakeLine(const nlohmann::ordered_json& line);

  SignalWatch& signals_;
  Supervisor supervisor_;
  const Observer observer_;
  std::string activity_;
  bool is_read_ = false;
  std::string text_;  // The front of a line that is not whole yet.
  nlohmann::ordered_json done_;
  std::string failure_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_REPORTING_PROGRAM_H_
