// thermocline eval: scores held-out rows with a checkpoint.
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/cli/train_job.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

int RunEval(const Flags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto setup = SetUpEvaluation(flags);
  if (!setup.ok()) return Complain(setup.status().message(), kExitUsage);

  const auto result = RunJobOnConsole(setup->job, setup->options, setup->directory, &signals);
  if (!result.ok()) {
    ReportFailure(
        absl::StrCat("checkpoint ", setup->options.start.base, ": ", result.status().message(),
                     "\nrun directory: ", setup->directory.path()),
        &signals);
    return kExitFailed;
  }
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals)
      .Write(absl::StrCat("checkpoint ", setup->options.start.base, "\n",
                          RenderEvaluation(result->summary),
                          "run directory: ", setup->directory.path(), "\n"));
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

Command EvalCommand() {
  Command command;
  command.name = "eval";
  command.arguments = "JOB --checkpoint PATH [FLAGS]";
  command.summary = "scores held-out rows with a checkpoint";
  command.details =
      "Starts the job's servers with the rows of a checkpoint, and one worker that scores the\n"
      "held-out rows of the job's data; trains nothing. PATH is a checkpoint's folder, such as\n"
      "RUN_DIR/checkpoints/epoch-1-step-999. The job's model must be the checkpoint's: what\n"
      "differs is named, and the exit code is 2.\n";
  command.examples =
      "  thermocline eval runs/r/job.textproto --checkpoint runs/r/checkpoints/epoch-1-step-999\n"
      "  thermocline eval job.textproto --checkpoint PATH --data other_log --servers 4\n";
  command.flags = JobFlags();
  command.flags.push_back({"checkpoint", "PATH", "the checkpoint's folder"});
  command.flags.push_back({"run-dir", "DIR", "default: runs/NAME-eval-TIME; must not hold files"});
  command.run = RunEval;
  return command;
}

}  // namespace thermocline
