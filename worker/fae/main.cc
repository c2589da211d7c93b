// thermocline-pack makes hot and cold batches of the training rows of a job, once, before the job
// trains. For a cache whose policy is STATIC it finds only the hot rows. `thermocline train` starts
// it.
//
// Reports to the file descriptor --progress_fd as deploy/processes/reporting_program.h reads it;
// the last line is {"event": "done", ...} with the figures of calibration (docs/operations.md).
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/json/report_lines.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/packing.h"

ABSL_FLAG(std::string, job, "", "Resolved job file, with `fae` or a cache with policy: STATIC");
ABSL_FLAG(int32_t, progress_fd, 1, "Write JSON lines to this file descriptor");
ABSL_FLAG(int32_t, threads, 0, "Threads that parse and count; 0: the machine's cores");
ABSL_FLAG(bool, calibrate_only, false, "Make no pack; say what would be hot");
ABSL_FLAG(std::vector<std::string>, budgets, {},
          "With --calibrate_only: budgets, such as 1MiB,64MiB; default: the job's");
ABSL_FLAG(std::vector<std::string>, samples, {},
          "With --calibrate_only: shares of the rows to count in; default: the job's");

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::atomic<bool> cancelled{false};
std::atomic<bool> has_file{false};

// The main thread removes the file of an unfinished pack; if there is none, the program ends
// immediately. A second signal ends the program at once.
void OnSignal(int signal) {
  cancelled = true;
  if (!has_file) _exit(128 + signal);
}

void WatchSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  // If the reader of the progress is gone, the work ends, too, and the file is removed.
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignored, nullptr);
}

absl::StatusOr<CalibrationGrid> ReadGrid(const Job& job) {
  CalibrationGrid grid;
  std::vector<std::string> budgets = absl::GetFlag(FLAGS_budgets);
  if (budgets.empty()) budgets = {job.has_fae() ? job.fae().budget() : job.cache().budget()};
  for (const std::string& text : budgets) {
    const auto bytes = ParseByteSize(text);
    if (!bytes.ok() || *bytes == 0 || *bytes > uint64_t{1} << 50) {
      return absl::InvalidArgumentError(absl::StrCat("--budgets: '", text, "' is no size"));
    }
    grid.budget_bytes.push_back(static_cast<int64_t>(*bytes));
  }
  if (absl::GetFlag(FLAGS_samples).empty()) {
    grid.sample_shares = {job.calibration().sample_share()};
  }
  for (const std::string& text : absl::GetFlag(FLAGS_samples)) {
    double share = 0;
    if (!absl::SimpleAtod(text, &share) || !(share > 0 && share <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--samples: '", text, "' is no share in (0, 1]"));
    }
    grid.sample_shares.push_back(share);
  }
  return grid;
}

absl::StatusOr<Json> DoWork(const PackingOptions& options) {
  ASSIGN_OR_RETURN(Job job, LoadJob(absl::GetFlag(FLAGS_job), {}));
  FillPackDirectory(absl::GetFlag(FLAGS_job), &job);
  if (!CountsHotRows(job)) {
    return absl::InvalidArgumentError(absl::StrCat(absl::GetFlag(FLAGS_job),
                                                   ": has neither `fae` nor a cache with policy: "
                                                   "STATIC, so there is nothing to pack"));
  }
  if (!absl::GetFlag(FLAGS_calibrate_only)) return FindOrMakePack(job, options);
  ASSIGN_OR_RETURN(const CalibrationGrid grid, ReadGrid(job));
  return CalibrateOnly(job, grid, options);
}

int Run() {
  ReportLines lines(absl::GetFlag(FLAGS_progress_fd));
  const auto write = [&](const Json& line) {
    if (!lines.Write(line)) cancelled = true;
  };
  PosixDisk disk;
  PackingOptions options;
  options.disk = &disk;
  options.threads =
      absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : HardwareThreads();
  options.cancelled = &cancelled;
  options.has_file = &has_file;
  options.on_progress = [&](const PackingProgress& progress) {
    if (!lines.IsProgressDue()) return;
    write({{"event", "progress"},
           {"activity", std::string(progress.activity)},
           {"rows", progress.rows},
           {"fraction", progress.fraction},
           {"seconds", absl::ToDoubleSeconds(progress.elapsed)}});
  };
  options.on_warning = [&](absl::string_view text) {
    write({{"event", "warning"}, {"text", std::string(text)}});
  };
  const absl::StatusOr<Json> found = DoWork(options);
  if (!found.ok()) {
    lines.WriteFailure(found.status());
    const absl::Status& status = found.status();
    const bool is_input = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
    return is_input ? kExitUsage : kExitFailed;
  }
  Json line = {{"event", "done"}};
  line.update(*found);
  write(line);
  return kExitDone;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  const std::vector<char*> arguments = thermocline::ParseProgramFlags(
      "makes hot and cold batches of a job's training rows.\n"
      "  thermocline-pack --job=run/job.textproto\n"
      "  thermocline-pack --job=run/job.textproto --calibrate_only --budgets=1MiB,64MiB "
      "--samples=0.05,1",
      argc, argv);
  if (arguments.size() > 1 || absl::GetFlag(FLAGS_job).empty()) {
    thermocline::LogLine("--job is missing, or there are other arguments");
    return thermocline::kExitUsage;
  }
  thermocline::WatchSignals();
  return thermocline::Run();
}
