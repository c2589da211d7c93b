// thermocline eval: scores held-out rows with a checkpoint.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/cli/train_job.h"
#include "deploy/runner/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

Json ResultOf(const RunSetup& setup, const std::string& rows, const Json& summary) {
  Json result;
  result["checkpoint"] = setup.options.start.base;
  result["step"] = setup.options.start.base_step.value();
  result["rows"] = rows;
  for (const char* name : {"eval_samples", "auc", "logloss", "bad_lines", "model_digest"}) {
    result[name] = summary.at(name);
  }
  result["run_directory"] = setup.directory.path();
  return result;
}

int RunEval(const Flags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto setup = SetUpEvaluation(flags);
  if (!setup.ok()) return Complain(setup.status().message(), kExitUsage);

  // With --json standard output has the result and nothing else.
  const bool json = flags.Has("json");
  const int progress_fd = json ? STDERR_FILENO : STDOUT_FILENO;
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
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals)
      .Write(json ? ResultOf(*setup, rows, result->summary)
                            .dump(2, ' ', false, Json::error_handler_t::replace) +
                        "\n"
                  : absl::StrCat("checkpoint ", setup->options.start.base, "\nscored: ", rows, "\n",
                                 RenderEvaluation(result->summary),
                                 "run directory: ", setup->directory.path(), "\n"));
  if (!result->shortfall.ok()) return fail(result->shortfall);
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

Command EvalCommand() {
  Command command;
  command.name = "eval";
  command.arguments = "[JOB] --checkpoint PATH [FLAGS]";
  command.summary = "scores rows with a checkpoint";
  command.details =
      "Starts the job's servers with the rows of a checkpoint, and one worker that scores all "
      "rows\n"
      "of --data, or else the held-out rows of the job's data; trains nothing. PATH is a\n"
      "checkpoint's folder, such as RUN_DIR/checkpoints/epoch-1-step-999, or a run directory: its\n"
      "newest whole checkpoint, or with RUN_DIR/best the one of the best evaluation. JOB may be\n"
      "left out where that is a run directory's. The job's model must be the checkpoint's: what\n"
      "differs is named, and the exit code is 2.\n";
  command.examples =
      "  thermocline eval --checkpoint runs/r\n"
      "  thermocline eval job.textproto --checkpoint PATH --data day_23.gz --servers 4 --json\n";
  command.flags = EvaluationJobFlags();
  command.flags.push_back({"checkpoint", "PATH", "the checkpoint's folder, or a run directory"});
  command.flags.push_back(
      {"json", "", "prints the result as JSON; progress goes to standard error"});
  command.flags.push_back({"run-dir", "DIR", "default: runs/NAME-eval-TIME; must not hold files"});
  command.run = RunEval;
  return command;
}

}  // namespace thermocline
