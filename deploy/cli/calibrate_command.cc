// thermocline calibrate: which rows would be hot within a budget, and what they are worth.
#include "deploy/cli/calibrate_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/job/job_loader.h"
#include "deploy/cli/command_line.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/console/format.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Of a job that says nothing of hot rows.
constexpr char kDefaultBudgets[] = "64MiB,256MiB,1GiB";

bool SaysHotRows(const Job& job) {
  return job.has_fae() || (job.has_cache() && job.cache().policy() == Cache::STATIC);
}

// The job, with `fae` in the place of what it has, where it counts no hot rows.
absl::StatusOr<Job> LoadForCalibration(const CalibrateFlags& flags, std::string* budgets) {
  *budgets = flags.budgets;
  ASSIGN_OR_RETURN(const Job job, LoadJobOf(flags));
  if (SaysHotRows(job)) return job;
  if (budgets->empty()) *budgets = kDefaultBudgets;
  JobFlags of_fae = flags;
  // What a job with `fae` may not have leaves the counts as they are.
  of_fae.set.erase(std::remove_if(of_fae.set.begin(), of_fae.set.end(),
                                  [](const std::string& set) {
                                    return absl::StartsWith(set, "cache.") ||
                                           absl::StartsWith(set, "cache=");
                                  }),
                   of_fae.set.end());
  for (const char* field : {"cache", "train.staleness_steps", "data.shuffle"}) {
    of_fae.clear.push_back(field);
  }
  const std::string first = std::string(budgets->begin(), absl::c_find(*budgets, ','));
  of_fae.set.push_back(absl::StrCat("fae={budget:'", first, "' schedule{fixed:true}}"));
  return LoadJobOf(of_fae);
}

absl::StatusOr<Json> Calibrate(const CalibrateFlags& flags, int fd, SignalWatch* signals) {
  std::string budgets;
  ASSIGN_OR_RETURN(const Job job, LoadForCalibration(flags, &budgets));
  ProgramCommand command;
  ASSIGN_OR_RETURN(command.path, FindProgram("thermocline-pack", flags.bin_dir));
  command.job = JobToText(job);
  command.arguments = {"--calibrate_only"};
  if (!budgets.empty()) command.arguments.push_back(absl::StrCat("--budgets=", budgets));
  if (!flags.samples.empty())
    command.arguments.push_back(absl::StrCat("--samples=", flags.samples));
  command.activity = "counting lookups";
  ASSIGN_OR_RETURN(Json found, RunProgramOnConsole(command, signals, fd));
  return std::move(found["calibrations"]);
}

double Number(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}
std::string Count(const Json& json, const char* name) {
  return FormatCount(static_cast<uint64_t>(Number(json, name)));
}
std::string Percent(const Json& json, const char* name) {
  return absl::StrFormat("%.1f%%", 100 * Number(json, name));
}

// The hot rows of each table, for the last calibration that was made.
std::string RenderTables(const Json& calibration) {
  std::vector<std::vector<std::string>> rows = {
      {"table", "rows seen", "hot rows", "estimate", "share of lookups"}, {}};
  for (const Json& table : calibration["tables"]) {
    const bool is_whole = table.value("whole", false);
    rows.push_back({table.value("name", ""), Count(table, "rows"),
                    Count(table, "hot_rows") + (is_whole ? " (whole)" : ""),
                    is_whole ? "-" : Count(table, "estimated_rows"),
                    Percent(table, "lookup_share")});
  }
  return absl::StrCat(
      "\nby table, with ", FormatBytes(static_cast<uint64_t>(Number(calibration, "budget_bytes"))),
      " and ", Percent(calibration, "sample_share"), " of the rows counted\n", FormatTable(rows));
}

}  // namespace

std::string RenderCalibrations(const Json& calibrations) {
  std::vector<std::vector<std::string>> rows = {
      {"budget", "counted", "lookups for a hot row", "estimated rows", "hot rows", "of lookups",
       "of samples", "seconds"},
      {}};
  std::string errors;
  const Json* last = nullptr;
  for (const Json& calibration : calibrations) {
    const std::string budget =
        FormatBytes(static_cast<uint64_t>(Number(calibration, "budget_bytes")));
    if (calibration.contains("error")) {
      absl::StrAppend(&errors, budget, ": ", calibration.value("error", ""), "\n");
      continue;
    }
    last = &calibration;
    const double seconds = Number(calibration, "read_s") + Number(calibration, "estimate_s") +
                           Number(calibration, "count_s");
    rows.push_back({budget, Percent(calibration, "sample_share"), Count(calibration, "threshold"),
                    Count(calibration, "estimated_rows"), Count(calibration, "hot_rows"),
                    Percent(calibration, "lookup_share"), Percent(calibration, "hot_sample_share"),
                    absl::StrFormat("%.2f", seconds)});
  }
  if (last == nullptr) return errors;
  return absl::StrCat(FormatTable(rows), errors, RenderTables(*last));
}

int RunCalibrate(const CalibrateFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto found = Calibrate(flags, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!found.ok()) {
    ReportFailure(found.status().message(), &signals);
    const bool is_usage =
        !absl::IsUnavailable(found.status()) && !absl::IsCancelled(found.status());
    return is_usage ? kExitUsage : kExitFailed;
  }
  Console(STDOUT_FILENO, &signals)
      .Write(flags.json ? found->dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                        : RenderCalibrations(*found));
  return kExitDone;
}

}  // namespace thermocline
