// thermocline calibrate: which rows would be hot within a budget, and what they are worth.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/process/child_process.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/hot_rows.h"
#include "deploy/cli/run_setup.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct CalibrateFlags : JobFlags {
  std::string budgets;  // separated by commas; "": the job's
  std::string samples;  // the same
  bool json = false;
};

// The budgets for a job without hot rows.
constexpr char kDefaultBudgets[] = "64MiB,256MiB,1GiB";

// Loads the job. If it counts no hot rows, `fae` takes the place of its cache.
absl::StatusOr<Job> LoadForCalibration(const CalibrateFlags& flags, std::string* budgets) {
  *budgets = flags.budgets;
  const absl::StatusOr<Job> job = LoadJobOf(flags);
  if (job.ok() && job->has_worker()) {
    return absl::InvalidArgumentError(
        "the job's model is a script (`worker`), which trains without hot rows (`fae`): there is "
        "nothing to calibrate");
  }
  if (job.ok() && CountsHotRows(*job)) return job;
  if (budgets->empty()) *budgets = kDefaultBudgets;
  const std::string first = std::string(budgets->begin(), absl::c_find(*budgets, ','));
  JobFlags of_fae = flags;
  if (!job.ok()) {  // `fae {}`, perhaps: which budget is good is the question.
    of_fae.set.push_back(absl::StrCat("fae.budget=", first));
    const absl::StatusOr<Job> with_budget = LoadJobOf(of_fae);
    return with_budget.ok() ? with_budget : job;
  }
  // What a job with `fae` may not have leaves the counts as they are.
  for (const char* field : {"cache", "train.staleness_steps", "data.shuffle"}) {
    TakeOut(field, &of_fae);
  }
  of_fae.set.push_back(absl::StrCat("fae={budget:'", first, "' schedule{fixed:true}}"));
  return LoadJobOf(of_fae);
}

absl::StatusOr<Json> Calibrate(const CalibrateFlags& flags, int fd, SignalWatch* signals) {
  std::string budgets;
  ASSIGN_OR_RETURN(const Job job, LoadForCalibration(flags, &budgets));
  ProgramCommand command;
  ASSIGN_OR_RETURN(command.path, FindProgram("thermocline-pack", flags.bin_dir));
  command.job = JobToText(job);
  command.arguments = {"--calibrate_only", "--budgets=" + budgets, "--samples=" + flags.samples};
  command.activity = "counting lookups";
  ASSIGN_OR_RETURN(Json found, RunProgramOnConsole(command, signals, fd));
  return std::move(found["calibrations"]);
}

int RunCalibrate(const CalibrateFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto found = Calibrate(flags, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!found.ok()) return ReportFailure(found.status(), &signals);
  Console(STDOUT_FILENO, &signals)
      .Write(flags.json ? found->dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                        : RenderCalibrations(*found));
  return kExitDone;
}

}  // namespace

void AddCalibrate(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = AddCommand(
      app, "calibrate", "says which rows would be hot, and what that is worth",
      R"(Counts the lookups of a job's training rows and says, for each budget of device memory, how
often a row must be looked up to be hot (FAE), how many rows that is, by an estimate and counted, and
which share of all lookups and of all samples reads hot rows only. It trains nothing and keeps
nothing. A job without `fae` is taken as one with it.

examples:
  thermocline calibrate job.textproto --budgets 1MiB,4MiB,64MiB
  thermocline calibrate job.textproto --budgets 4MiB --samples 0.01,0.05,0.2,1)");
  AddJobFlags(command, flags.get(), true, nullptr);
  AddValue(command, "--budgets", &flags->budgets, "SIZE,SIZE",
           "device memory for hot rows; default: the job's, or 64MiB,256MiB,1GiB");
  AddValue(command, "--samples", &flags->samples, "SHARE,SHARE",
           "shares of the rows to count in; default: the job's calibration.sample_share");
  command->add_flag("--json", flags->json,
                    "prints the figures as JSON; progress goes to standard error");
  OnCommand(command, action, RunCalibrate, flags);
}

}  // namespace thermocline
