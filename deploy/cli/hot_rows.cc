#include "deploy/cli/hot_rows.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/job/job_loader.h"
#include "common/process/child_process.h"
#include "deploy/cli/console.h"
#include "deploy/report/format.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDigestFile[] = "pack.digest";

// 0 where there is none.
double Number(const Json& json, const char* name) { return NumberAt(json, name).value_or(0); }

// A number of the object called `object`.
std::optional<double> NumberIn(const Json& json, const char* object, const char* name) {
  const auto found = json.find(object);
  return found == json.end() ? std::nullopt : NumberAt(*found, name);
}

std::string CountText(double count) { return FormatCount(static_cast<uint64_t>(count)); }

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

absl::StatusOr<Json> FindHotRows(const Job& job, const std::string& bin_dir, SignalWatch* signals,
                                 int fd) {
  ProgramCommand command;
  ASSIGN_OR_RETURN(command.path, FindProgram("thermocline-pack", bin_dir));
  command.job = JobToText(job);
  command.activity = "counting lookups";
  ASSIGN_OR_RETURN(Json found, RunProgramOnConsole(command, signals, fd));
  Console(fd, signals).TryWrite(DescribeHotRows(found) + "\n");
  found.erase("event");
  return found;
}

absl::Status KeepPackOfRun(const RunDirectory& directory, bool goes_on, const Json& found) {
  const std::string digest = found.value("digest", "");
  std::string before;
  std::ifstream(directory.File(kDigestFile)) >> before;
  if (!goes_on || before.empty()) return directory.Write(kDigestFile, digest + "\n");
  if (before == digest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the hot and cold batches are not those that the run has trained from: the data are others "
      "than before, and its checkpoints stand amid the batches of those (pack ",
      before, " in ", directory.File(kDigestFile), "; now ", digest,
      "); go on with the same data, or begin a new run, with --init-from to keep the model"));
}

void NoteFailedPacking(const RunDirectory& directory, const absl::Status& why) {
  const auto metrics = MetricsLog::Create(directory.File("metrics.jsonl"));
  if (!metrics.ok()) return;
  const char* const what = absl::IsCancelled(why) ? "packing was stopped: " : "packing failed: ";
  (*metrics)->AppendEvent({{"event", "end"},
                           {"status", absl::StatusCodeToString(why.code())},
                           {"reason", absl::StrCat(what, why.message())},
                           {"has_summary", false}},
                          absl::ZeroDuration());
}

int ExitCodeOfHotRows(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
}

std::string DescribeHotRows(const Json& found) {
  std::string line = absl::StrCat("hot rows: ", CountText(Number(found, "hot_rows")));
  if (const auto share = NumberAt(found, "lookup_share")) {
    absl::StrAppendFormat(&line, ", %.1f%% of the lookups", 100 * *share);
  }
  const double hot = NumberIn(found, "samples", "hot").value_or(0);
  const double cold = NumberIn(found, "samples", "cold").value_or(0);
  if (hot + cold > 0)
    absl::StrAppendFormat(&line, ", %.1f%% of the samples", 100 * hot / (hot + cold));
  const auto batches = NumberIn(found, "batches", "hot");
  if (batches.has_value() && hot + cold > 0) {  // A static cache has none.
    absl::StrAppend(&line, "; ", CountText(*batches), " hot batches and ",
                    CountText(NumberIn(found, "batches", "cold").value_or(0)), " cold ones");
  }
  const auto reused = found.find("reused");
  if (reused != found.end() && *reused == true) return line + "; found as they were left before";
  absl::StrAppendFormat(&line, "; counted in %.1f s", Number(found, "calibrate_s"));
  if (hot + cold > 0) absl::StrAppendFormat(&line, ", packed in %.1f s", Number(found, "pack_s"));
  return line;
}

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

}  // namespace thermocline
