#include "deploy/cli/data_figures.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "common/process/child_process.h"
#include "deploy/cli/console.h"
#include "deploy/inspect/inspection.h"

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
absl::StatusOr<Json> ScanData(const std::string& bin_dir, const Job& job, int fd,
                              SignalWatch* signals) {
  const Data data = DescribeData(job.data());
  InspectionRequest request;
  request.paths.assign(data.train().path().begin(), data.train().path().end());
  request.s3 = data.s3().ShortDebugString();
  if (data.train().has_csv()) request.separator = data.train().csv().separator();
  const bool names_columns =
      data.train().has_criteo_tsv() || (data.train().has_csv() && !data.train().csv().header());
  if (names_columns) request.columns = absl::StrJoin(TextColumns(data.train()), ",");
  ASSIGN_OR_RETURN(const std::string program, FindProgram("thermocline-inspect", bin_dir));
  ASSIGN_OR_RETURN(Json found,
                   RunProgramOnConsole(InspectionCommand(program, request), signals, fd));
  return std::move(found["figures"]);
}

}  // namespace

void RefuseBoth(CLI::Option* figures, const CLI::Option* scan) {
  figures->check(CLI::Validator(
      [scan](const std::string&) {
        return std::string(scan->count() > 0 ? "give it or --scan, not both" : "");
      },
      ""));
}

absl::StatusOr<std::optional<Json>> FiguresOf(const Job& job, const FiguresFlags& flags,
                                              const std::string& bin_dir, int fd,
                                              SignalWatch* signals) {
  if (!flags.scan && flags.file.empty()) return std::nullopt;
  // A submission that goes on may have the file of the last one beside its own --scan.
  absl::StatusOr<Json> found =
      flags.scan ? ScanData(bin_dir, job, fd, signals) : ReadFigures(flags.file);
  if (!found.ok()) return found.status();
  return *std::move(found);
}

// The library throws where the figures lack something.
absl::StatusOr<JobPlan> PlanOf(const Job& job, const PlanInputs& inputs, const Machine& machine) {
  try {
    return PlanJob(job, inputs, machine);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the figures are not what `inspect --json` prints: ", error.what()));
  }
}

}  // namespace thermocline
