// thermocline eval: scores held-out rows with a checkpoint.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/cli/command_line.h"
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
  result["run_directory"] = run_dir.empty() ? Json(nullptr) : Json(run_dir);
  return result;
}

}  // namespace

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
  // Its own, with logs that nobody needs.
  const bool is_kept = !flags.run_dir.empty() || !result->shortfall.ok();
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
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace thermocline
