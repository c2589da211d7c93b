// thermocline bench arms: ways of feeding the compute, side by side on one job and its data.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "deploy/bench/arms.h"
#include "deploy/bench/picture.h"
#include "deploy/bench/shaped_hosts.h"
#include "deploy/bench/train_run.h"
#include "deploy/cli/bench_commands.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/plan/machine.h"
#include "deploy/processes/child_process.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

constexpr char kColumns[] =
    R"(medians over the seeds, beside them lowest .. highest
calibrate s, pack s: of the run that made the pack, which others with its budget and data reuse
budget: bytes of the rows that each worker holds, with optimizer state (a cache gets room for the rows
  of a batch beside them)
times and bytes: of training without evaluations, with the scoring that fae's schedule asks for
wire: between workers and servers, and among workers; hits: of the distinct keys of each batch; hot: of
  the samples
)";

// What the command was asked for, checked.
struct ArmsPlan {
  Job job;
  JobFlags flags;  // That load it.
  std::vector<Arm> arms;
  std::vector<uint64_t> budgets;
  bool names_arms = false;  // The user did; else all are there.
};

std::string ArmWithBudget(const ArmRuns& arm) {
  return arm.budget == 0 ? ArmName(arm.arm)
                         : absl::StrCat(ArmName(arm.arm), " ", FormatBytes(arm.budget));
}

// Errors: kInvalidArgument and what LoadJobOf finds
absl::StatusOr<ArmsPlan> PlanArms(const BenchArmsFlags& flags) {
  ArmsPlan plan;
  plan.names_arms = !flags.arms.empty();
  plan.arms = AllArms();
  if (plan.names_arms) {
    ASSIGN_OR_RETURN(plan.arms, ParseArms(flags.arms));
  }
  if (flags.auc.has_value() && !(*flags.auc > 0.5 && *flags.auc < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--auc is ", *flags.auc, "; it must be in (0.5, 1)"));
  }
  plan.flags = flags;
  ASSIGN_OR_RETURN(plan.job, LoadJobOfArms(flags.budgets, &plan.flags));
  std::string budgets = flags.budgets;
  if (budgets.empty()) {
    budgets = plan.job.has_fae() ? plan.job.fae().budget() : plan.job.cache().budget();
  }
  const bool holds = std::any_of(plan.arms.begin(), plan.arms.end(), HoldsRows);
  if (holds && budgets.empty()) {
    return absl::InvalidArgumentError(
        "--budgets says what the arms may hold: --budgets 1MiB,2MiB (the job has neither "
        "fae.budget nor cache.budget)");
  }
  if (holds) {
    ASSIGN_OR_RETURN(plan.budgets, ParseBudgets(budgets));
  }
  return plan;
}

// Changes the flags that load the job.
void Apply(const JobChange& change, JobFlags* flags) {
  for (const std::string& field : change.clear) TakeOut(field, flags);
  flags->set.insert(flags->set.end(), change.set.begin(), change.set.end());
}

// Runs the arms, and keeps what came of them.
class ArmsBench {
 public:
  ArmsBench(const BenchArmsFlags& flags, ArmsPlan plan, const ShapedHosts* hosts, RunDirectory out,
            SignalWatch* signals)
      : flags_(flags),
        plan_(std::move(plan)),
        hosts_(hosts),
        out_(std::move(out)),
        signals_(*signals),
        console_(STDOUT_FILENO, signals) {}

  // Errors: of an arm that the user named and that this job can't have; kCancelled; kUnavailable
  absl::Status Prepare() {
    for (const Arm arm : plan_.arms) {
      if (!HoldsRows(arm)) arms_.push_back({arm, 0, "", {}, {}});
      for (const uint64_t budget : HoldsRows(arm) ? plan_.budgets : std::vector<uint64_t>()) {
        arms_.push_back({arm, budget, "", {}, {}});
      }
    }
    for (ArmRuns& arm : arms_) {
      if (arm.arm == Arm::kRemoteGpu && ThisMachine(".").gpus.empty()) {
        arm.absence = "this machine has no GPU";
        continue;
      }
      const auto job = LoadJobOf(FlagsOf(arm, plan_.job.seed(), 0));
      if (job.ok()) continue;
      const std::string why(job.status().message());
      if (plan_.names_arms) {
        return absl::InvalidArgumentError(absl::StrCat("arm ", ArmWithBudget(arm), ": ", why));
      }
      arm.absence = why;
    }
    return out_.Write("setup.txt", Setup());
  }

  // Errors: kCancelled, kAborted (the job itself fails)
  absl::Status Run() {
    console_.Write(Setup());
    ASSIGN_OR_RETURN(const int64_t steps, CountSteps());
    for (int64_t i = 0; i < flags_.seeds; ++i) {
      const uint64_t seed = plan_.job.seed() + static_cast<uint64_t>(i);
      for (ArmRuns& arm : arms_) {
        if (arm.absence.empty()) RETURN_IF_ERROR(RunOne(seed, steps, &arm));
      }
    }
    return absl::OkStatus();
  }

  // Prints and writes what there is.
  absl::Status Report() {
    const auto target = flags_.auc.has_value() ? flags_.auc : TargetAuc(arms_);
    std::string text = absl::StrCat("\n", RenderArms(arms_, target), "\n", Legend(target));
    console_.Write(text);
    RETURN_IF_ERROR(out_.Write("arms.txt", absl::StrCat(Setup(), text)));
    RETURN_IF_ERROR(out_.Write("arms.csv", ArmsCsv(arms_, target)));
    RETURN_IF_ERROR(out_.Write("curves.csv", CurvesCsv(arms_)));
    console_.Write(absl::StrCat(DrawPicture("arms", out_.path()), "results: ", out_.path(), "\n"));
    return absl::OkStatus();
  }

  bool has_failed() const { return has_failed_; }

 private:
  // The user's flags, changed as the arm wants it. steps 0: without evaluations.
  JobFlags FlagsOf(const ArmRuns& arm, uint64_t seed, int64_t steps) const {
    JobFlags flags = plan_.flags;
    // One folder for all: a pack is made once, whatever the seed, and kept under its digest.
    const std::string packs = out_.path() + "/packs";
    const JobChange own =
        ChangeOf(arm.arm, plan_.job, arm.budget, std::filesystem::absolute(packs).string());
    const JobChange common = CommonChange(plan_.job, steps, steps == 0 ? 0 : flags_.evaluations);
    for (const JobChange* change : {&own, &common}) {
      Apply(*change, &flags);
    }
    flags.set.push_back(absl::StrCat("seed=", seed));
    return flags;
  }

  TrainRun RunOf(const JobFlags& flags, const std::string& name) const {
    TrainRun run;
    run.arguments.push_back(flags.job);
    const auto add = [&run](const char* flag, const std::optional<std::string>& value) {
      if (value.has_value()) run.arguments.insert(run.arguments.end(), {flag, *value});
    };
    add("--data", flags.data);
    add("--servers", flags.servers);
    add("--workers", flags.workers);
    for (const std::string& field : flags.clear) add("--clear", field);
    for (const std::string& assignment : flags.set) add("--set", assignment);
    if (flags.insecure) run.arguments.push_back("--insecure");
    if (!flags.bin_dir.empty()) add("--bin-dir", flags.bin_dir);
    run.bin_dir = flags.bin_dir;
    run.run_dir = absl::StrCat(out_.path(), "/", name);
    run.servers = plan_.job.cluster().servers();
    run.workers = plan_.job.cluster().workers();
    return run;
  }

  // A first run, which is not counted: it also brings the data into the machine's memory.
  absl::StatusOr<int64_t> CountSteps() {
    const TrainRun run =
        RunOf(FlagsOf({Arm::kRemoteCpu, 0, "", {}, {}}, plan_.job.seed(), 0), "first");
    ASSIGN_OR_RETURN(const RunFigures figures, RunTraining(run, hosts_, &signals_));
    console_.Write(absl::StrFormat("first run, not counted: %d steps, %.0f samples/s\n",
                                   figures.steps, figures.samples_per_s));
    return figures.steps;
  }

  // Errors: those of RunTraining
  absl::StatusOr<RunFigures> Train(const ArmRuns& arm, uint64_t seed, int64_t steps,
                                   const char* suffix) {
    const std::string budget = arm.budget == 0 ? "" : absl::StrCat("-", arm.budget);
    const TrainRun run = RunOf(FlagsOf(arm, seed, steps),
                               absl::StrCat(ArmName(arm.arm), budget, "-seed-", seed, suffix));
    std::ofstream(out_.File("commands.txt"), std::ios::app) << CommandLineOf(run) << "\n";
    return RunTraining(run, hosts_, &signals_);
  }

  // A run that is timed, and, unless one of the same model was made, one that is evaluated on its
  // way: an arm that holds rows writes them back for every evaluation.
  absl::StatusOr<RunFigures> TrainAndEvaluate(const ArmRuns& arm, uint64_t seed, int64_t steps) {
    ASSIGN_OR_RETURN(RunFigures figures, Train(arm, seed, 0, ""));
    if (flags_.evaluations == 0) return figures;
    const auto [curve, is_new] = curves_.try_emplace({seed, figures.digest});
    if (is_new) {
      absl::StatusOr<RunFigures> evaluated = Train(arm, seed, steps, "-evaluated");
      if (!evaluated.ok()) {
        curves_.erase(curve);
        return evaluated.status();
      }
      curve->second = *std::move(evaluated);
    }
    TakeEvaluations(curve->second, &figures);
    return figures;
  }

  // fae and fae-static have one pack for each budget, also for several seeds where all rows are
  // counted: what it took to make counts for each of them.
  void RememberPack(RunFigures* figures) {
    if (!figures->reuses_pack) {
      packs_[figures->pack] = {figures->calibrate_s, figures->pack_s};
    } else if (const auto made = packs_.find(figures->pack); made != packs_.end()) {
      std::tie(figures->calibrate_s, figures->pack_s) = made->second;
    }
  }

  absl::Status RunOne(uint64_t seed, int64_t steps, ArmRuns* arm) {
    absl::StatusOr<RunFigures> figures = TrainAndEvaluate(*arm, seed, steps);
    if (absl::IsCancelled(figures.status())) return figures.status();
    if (!figures.ok()) {
      arm->absence = absl::StrCat("seed ", seed, ": ", figures.status().message());
      has_failed_ = true;
      console_.Write(absl::StrCat(ArmWithBudget(*arm), ", ", arm->absence, "\n"));
      return absl::OkStatus();
    }
    double load[1] = {0};
    const bool has_load = getloadavg(load, 1) == 1;
    console_.Write(absl::StrFormat(
        "%-24s seed %d  %9.0f samples/s  AUC %s  %7.0f wire bytes a sample  load %s\n",
        ArmWithBudget(*arm), seed, figures->samples_per_s,
        figures->auc ? absl::StrFormat("%.4f", *figures->auc) : "-", figures->wire_bytes_per_sample,
        has_load ? absl::StrFormat("%.1f", load[0]) : "-"));
    RememberPack(&*figures);
    arm->seeds.push_back(seed);
    arm->runs.push_back(*std::move(figures));
    return absl::OkStatus();
  }

  std::string Setup() const {
    const Job& job = plan_.job;
    return absl::StrFormat(
        "job %s, data %s, batch %u, %u servers and %u workers %s, %d seeds, %d hardware threads\n",
        job.name(), DescribeData(job.data()).train().path(0), job.train().batch_size(),
        job.cluster().servers(), job.cluster().workers(),
        hosts_ == nullptr ? "over loopback"
                          : absl::StrCat("each behind a link of ", hosts_->rate()),
        flags_.seeds, HardwareThreads());
  }

  // What the columns mean.
  std::string Legend(std::optional<double> target) const {
    std::string text;
    if (target && !flags_.auc.has_value()) {
      absl::StrAppendFormat(&text,
                            "AUC %.4f: the lowest at the end of remote-cpu, less the distance of "
                            "its lowest and highest\n",
                            *target);
    } else if (!target) {
      text =
          "no time to an AUC: remote-cpu is not among the arms, or has none, and --auc is not "
          "given\n";
    }
    return text + kColumns;
  }

  const BenchArmsFlags& flags_;
  const ArmsPlan plan_;
  const ShapedHosts* const hosts_;  // null: loopback
  const RunDirectory out_;
  SignalWatch& signals_;
  Console console_;
  std::vector<ArmRuns> arms_;
  // Evaluated runs, by seed and the digest of the model at the end.
  std::map<std::pair<uint64_t, std::string>, RunFigures> curves_;
  // Seconds of calibrating and packing, by the pack's file.
  std::map<std::string, std::pair<std::optional<double>, std::optional<double>>> packs_;
  bool has_failed_ = false;
};

}  // namespace

absl::StatusOr<Job> LoadJobOfArms(const std::string& budgets, JobFlags* flags) {
  absl::StatusOr<Job> job = LoadJobOf(*flags);
  if (job.ok() || budgets.empty()) return job;
  JobFlags with_fae = *flags;
  with_fae.set.push_back(absl::StrCat("fae.budget=", budgets.substr(0, budgets.find(','))));
  absl::StatusOr<Job> calibrated = LoadJobOf(with_fae);
  if (!calibrated.ok()) return job;
  *flags = std::move(with_fae);
  return calibrated;
}

int RunBenchArms(const BenchArmsFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  auto plan = PlanArms(flags);
  if (!plan.ok()) return Complain(plan.status().message(), kExitUsage);
  const auto programs = FindProgramsOf(flags);
  if (!programs.ok()) return Complain(programs.status().message(), kExitUsage);
  std::unique_ptr<ShapedHosts> hosts;
  if (!flags.link.empty()) {
    const int count =
        static_cast<int>(plan->job.cluster().servers() + plan->job.cluster().workers());
    auto made = ShapedHosts::Create(count, flags.link);
    if (!made.ok()) return Complain(made.status().message(), kExitUsage);
    hosts = *std::move(made);
  }
  const auto out =
      RunDirectory::Create(flags.out, absl::StrCat(plan->job.name(), "-arms"), absl::Now());
  if (!out.ok()) return Complain(out.status().message(), kExitUsage);
  ArmsBench bench(flags, *std::move(plan), hosts.get(), *out, &signals);
  if (const absl::Status ready = bench.Prepare(); !ready.ok()) {
    return Complain(ready.message(), kExitUsage);
  }
  return RunBench(&bench, &signals);
}

}  // namespace thermocline
