#include "deploy/cli/hot_rows.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/job/job_loader.h"
#include "deploy/cli/console.h"
#include "deploy/console/format.h"
#include "deploy/runner/child_process.h"
#include "deploy/runner/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "hot";
constexpr char kDigestFile[] = "pack.digest";

// A number of the object called `object`.
std::optional<double> NumberIn(const Json& json, const char* object, const char* name) {
  const auto found = json.find(object);
  return found == json.end() ? std::nullopt : NumberAt(*found, name);
}

std::string CountText(double count) { return FormatCount(static_cast<uint64_t>(count)); }

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

bool HasHotRows(const Job& job) {
  return job.has_fae() || (job.has_cache() && job.cache().policy() == Cache::STATIC);
}

void FillHotDirectory(const RunDirectory& directory, Job* job) {
  if (!HasHotRows(*job)) return;
  const std::string own = AbsolutePath(directory.File(kFolder));
  const std::string& named = job->calibration().directory();
  // The job file of a run names its folder in full.
  const bool was_moved =
      std::filesystem::path(named).filename() == kFolder && !Exists(named) && Exists(own);
  if (named.empty() || was_moved) job->mutable_calibration()->set_directory(own);
}

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

int ExitCodeOfHotRows(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
}

std::string DescribeHotRows(const Json& found) {
  std::string line = absl::StrCat("hot rows: ", CountText(NumberAt(found, "hot_rows").value_or(0)));
  if (const auto share = NumberAt(found, "hot_lookups")) {
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
  const auto seconds = [&](const char* name) { return NumberAt(found, name).value_or(0); };
  absl::StrAppendFormat(&line, "; counted in %.1f s", seconds("calibrate_s"));
  if (hot + cold > 0) absl::StrAppendFormat(&line, ", packed in %.1f s", seconds("pack_s"));
  return line;
}

}  // namespace thermocline
