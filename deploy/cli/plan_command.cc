// thermocline plan: what a job will need, beside what this machine has.
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "deploy/cli/command_line.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/inspect/inspection.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> ReadFigures(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("--figures '", path, "' can't be read"));
  Json figures = Json::parse(file, nullptr, false);
  for (const char* name : {"rows", "complete", "columns"}) {
    if (figures.is_object() && figures.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--figures '", path, "' is not what `inspect --json` prints"));
  }
  return figures;
}

// Reads the job's training data as the job describes them.
absl::StatusOr<Json> ScanData(const PlanFlags& flags, const Job& job, int fd,
                              SignalWatch* signals) {
  const Data data = DescribeData(job.data());
  InspectionRequest request;
  request.paths.assign(data.train().path().begin(), data.train().path().end());
  request.s3 = data.s3().ShortDebugString();
  if (data.train().has_csv()) request.separator = data.train().csv().separator();
  const bool names_columns =
      data.train().has_criteo_tsv() || (data.train().has_csv() && !data.train().csv().header());
  if (names_columns) request.columns = absl::StrJoin(TextColumns(data.train()), ",");
  ASSIGN_OR_RETURN(const std::string program, FindProgram("thermocline-inspect", flags.bin_dir));
  ASSIGN_OR_RETURN(Json found,
                   RunProgramOnConsole(InspectionCommand(program, request), signals, fd));
  return std::move(found["figures"]);
}

// Figures that someone has changed may lack anything: the library throws at what isn't there.
absl::StatusOr<JobPlan> Plan(const Job& job, const PlanInputs& inputs, const Machine& machine) {
  try {
    return PlanJob(job, inputs, machine);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the figures are not what `inspect --json` prints: ", error.what()));
  }
}

}  // namespace

int RunPlan(const PlanFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(why.message(), &signals);
    return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
  };
  if (flags.scan && !flags.figures.empty()) {
    return fail(absl::InvalidArgumentError("give --figures or --scan, not both"));
  }
  const auto job = LoadJobOf(flags);
  if (!job.ok()) return fail(job.status());
  std::optional<Json> figures;
  if (flags.scan || !flags.figures.empty()) {
    absl::StatusOr<Json> found =
        flags.scan ? ScanData(flags, *job, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals)
                   : ReadFigures(flags.figures);
    if (!found.ok()) return fail(found.status());
    figures = *std::move(found);
  }
  PlanInputs inputs;
  if (figures.has_value()) inputs.figures = &*figures;
  inputs.samples_per_s = flags.samples_per_s;
  const std::string& folder = job->checkpoint().directory();
  Machine machine = ThisMachine(folder.empty() ? "runs" : folder);
  if (!machine.gpus.empty()) machine.gpu_memory_bytes = SmallestGpuMemory();
  const auto plan = Plan(*job, inputs, machine);
  if (!plan.ok()) return fail(plan.status());
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals)
      .Write(flags.json ? PlanToJson(*plan, machine).dump(2) + "\n"
                        : RenderPlan(*job, *plan, machine));
  const bool fits = Fits(*job, *plan, machine);
  return fits && signals.stop_requests() == requests ? kExitDone : kExitFailed;
}

}  // namespace thermocline
