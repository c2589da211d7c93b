// thermocline eval: scores held-out rows with a checkpoint.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/job_files.h"
#include "deploy/cli/run_setup.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// `run_dir`: "": it is not kept.
Json ResultOf(const RunSetup& setup, const std::string& rows, const std::string& run_dir,
              const Json& summary) {
  Json result;
  result["checkpoint"] = setup.options.start.base;
  result["step"] = setup.options.start.base_step.value();
  result["rows"] = rows;
  for (const char* name : {"eval_samples", "auc", "gauc", "logloss", "normalized_entropy",
                           "calibration", "bad_lines", "model_digest"}) {
    result[name] = summary.at(name);
  }
  for (const char* name : {"task", "tasks", "own_metric"}) {
    if (summary.contains(name)) result[name] = summary[name];
  }
  result["run_directory"] = run_dir.empty() ? Json(nullptr) : Json(run_dir);
  return result;
}

int RunEval(const EvalFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  // With --json standard output has the result and nothing else.
  const int progress_fd = flags.json ? STDERR_FILENO : STDOUT_FILENO;
  const absl::StatusOr<RunSetup> setup = [&] {
    ByteScan scan = ScanOnConsole(progress_fd, &signals);
    return SetUpEvaluation(flags, &scan);
  }();
  if (!setup.ok()) return ComplainAboutSetup(setup.status());

  const std::string rows = DescribeScoredRows(setup->job.data());
  const auto result =
      RunJobOnConsole(setup->job, setup->options, setup->directory, &signals, progress_fd);
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(absl::StrCat("checkpoint ", setup->options.start.base, ": ", why.message(),
                               "\nrun directory: ", setup->directory.path()),
                  &signals);
    return kExitFailed;
  };
  if (!result.ok()) return fail(result.status());
  // If the user has named no run directory, it has only logs, which are not needed any more.
  const bool is_scored = !setup->job.has_worker() || IsScored(result->summary);
  const bool is_kept = !flags.run_dir.empty() || !result->shortfall.ok() || !is_scored;
  if (!is_kept) setup->directory.RemoveAll();
  const std::string run_dir = is_kept ? setup->directory.path() : "";
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals)
      .Write(flags.json
                 ? ResultOf(*setup, rows, run_dir, result->summary)
                           .dump(2, ' ', false, Json::error_handler_t::replace) +
                       "\n"
                 : absl::StrCat("checkpoint ", setup->options.start.base, "\nscored: ", rows, "\n",
                                RenderEvaluation(result->summary),
                                is_kept ? absl::StrCat("run directory: ", run_dir, "\n") : ""));
  if (!result->shortfall.ok()) return fail(result->shortfall);
  if (!is_scored) {
    return fail(absl::FailedPreconditionError(
        "no row was scored: none is held out, or the script did not call run.evaluate()"));
  }
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

void AddEval(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = AddCommand(
      app, "eval", "scores rows with a checkpoint",
      R"(Starts the job's servers with the rows of a checkpoint, and one worker that scores all rows of
--data or, without --data, the held-out rows of the job's data. Trains nothing.

PATH is a checkpoint's folder, such as RUN_DIR/step-999; or a run directory:
its newest whole checkpoint; or RUN_DIR/best: the checkpoint of the best evaluation. JOB may be left
out if the checkpoint lies in a run directory, which has the job. The job's model must be the
checkpoint's: if not, the error names the difference, and the exit code is 2.

examples:
  thermocline eval --checkpoint runs/r
  thermocline eval job.textproto --checkpoint PATH --data day_23.gz --servers 4 --json)");
  AddValue(command, "--checkpoint", &flags->checkpoint, "PATH",
           "the checkpoint's folder, or a run directory")
      ->required();
  AddJobFlags(command, flags.get(), false,
              "default: one that is removed at the end; must hold no files");
  command->add_flag("--json", flags->json,
                    "prints the result as JSON; progress goes to standard error");
  OnCommand(command, action, RunEval, flags);
}

}  // namespace thermocline
