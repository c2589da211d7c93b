// thermocline bench sweep: how speed and traffic follow the shape of a model.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/job/job_loader.h"
#include "deploy/bench/picture.h"
#include "deploy/bench/shaped_hosts.h"
#include "deploy/bench/sweep.h"
#include "deploy/bench/train_run.h"
#include "deploy/cli/bench_commands.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/plan/machine.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

constexpr char kReductions[] =
    R"(samples/s, bytes and times are of whole short runs, one for each point
data: drawn for each point; ids are skewed (Zipf, 1.05) and independent; a run whose data would take
  more than 64 MiB reads fewer samples, several times; steps beyond 4e11 multiplications and additions
  are left out, down to 5
placement: half of the tables have a hundredth of the rows; the first word of two is theirs; CACHED
  tables have room for a tenth of the rows that the data touch
)";

class SweepBench {
 public:
  SweepBench(const BenchSweepFlags& flags, std::vector<SweepPoint> points, const ShapedHosts* hosts,
             RunDirectory out, SignalWatch* signals)
      : flags_(flags),
        points_(std::move(points)),
        hosts_(hosts),
        out_(std::move(out)),
        signals_(*signals),
        console_(STDOUT_FILENO, signals) {}

  // Errors: kCancelled, kUnavailable
  absl::Status Run() {
    const bool has_gpu = !ThisMachine(".").gpus.empty();
    console_.Write(Setup());
    for (SweepPoint& point : points_) {
      if (point.shape.device == "CUDA" && !has_gpu) {
        point.absence = "this machine has no GPU";
        continue;
      }
      RETURN_IF_ERROR(RunPoint(&point));
    }
    return absl::OkStatus();
  }

  // Prints and writes what there is.
  absl::Status Report() {
    const std::string text = absl::StrCat("\n", RenderSweep(points_), "\n", kReductions);
    console_.Write(text);
    RETURN_IF_ERROR(out_.Write("sweep.txt", absl::StrCat(Setup(), text)));
    RETURN_IF_ERROR(out_.Write("sweep.csv", SweepCsv(points_)));
    console_.Write(absl::StrCat(DrawPicture("sweep", out_.path()), "results: ", out_.path(), "\n"));
    return absl::OkStatus();
  }

  bool has_failed() const { return has_failed_; }

 private:
  absl::Status RunPoint(SweepPoint* point) {
    const std::string name = absl::StrCat(
        point->knob, "-", absl::StrReplaceAll(point->value, {{", ", "-"}, {"^", "x"}}));
    const std::string data = absl::StrCat(out_.path(), "/data");
    absl::StatusOr<RunFigures> figures = [&]() -> absl::StatusOr<RunFigures> {
      const int64_t steps = SweepSteps(point->shape, flags_.steps);
      RETURN_IF_ERROR(WriteSweepData(point->shape, SweepRows(point->shape, steps), data));
      ASSIGN_OR_RETURN(const Job job,
                       SweepJob(point->shape, steps, std::filesystem::absolute(data).string()));
      RETURN_IF_ERROR(out_.Write(name + ".textproto", JobToText(job)));
      return RunTraining(RunOf(name), hosts_, &signals_);
    }();
    std::error_code ignored;
    std::filesystem::remove_all(data, ignored);
    if (absl::IsCancelled(figures.status())) return figures.status();
    if (!figures.ok()) {
      point->absence = std::string(figures.status().message());
      has_failed_ = true;
      console_.Write(absl::StrCat(point->knob, " ", point->value, ": ", point->absence, "\n"));
      return absl::OkStatus();
    }
    console_.Write(absl::StrFormat("%-10s %-16s %9.0f samples/s  %d steps\n", point->knob,
                                   point->value, figures->samples_per_s, figures->steps));
    point->figures = *std::move(figures);
    return absl::OkStatus();
  }

  TrainRun RunOf(const std::string& name) const {
    TrainRun run;
    run.arguments = {out_.File(name + ".textproto"), "--servers", absl::StrCat(flags_.servers),
                     "--workers", absl::StrCat(flags_.workers)};
    for (const std::string& assignment : flags_.set) {
      run.arguments.insert(run.arguments.end(), {"--set", assignment});
    }
    if (!flags_.bin_dir.empty()) {
      run.arguments.insert(run.arguments.end(), {"--bin-dir", flags_.bin_dir});
    }
    run.bin_dir = flags_.bin_dir;
    run.run_dir = out_.File(name);
    run.servers = static_cast<uint32_t>(flags_.servers);
    run.workers = static_cast<uint32_t>(flags_.workers);
    return run;
  }

  std::string Setup() const {
    const SweepShape base;
    return absl::StrFormat(
        "base: %d numbers, %d tables of %d rows, %d lookup, dim %d, MLPs %d^%d, batch %d; %d "
        "servers and %d workers %s; at most %d steps, %d hardware threads\n",
        base.dense, base.sparse, base.hash, base.lookups, base.dim, base.width, base.layers,
        base.batch, flags_.servers, flags_.workers,
        hosts_ == nullptr ? "over loopback"
                          : absl::StrCat("each behind a link of ", hosts_->rate()),
        flags_.steps, HardwareThreads());
  }

  const BenchSweepFlags& flags_;
  std::vector<SweepPoint> points_;
  const ShapedHosts* const hosts_;  // null: loopback
  const RunDirectory out_;
  SignalWatch& signals_;
  Console console_;
  bool has_failed_ = false;
};

}  // namespace

int RunBenchSweep(const BenchSweepFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  auto points = PlanSweep(flags.knobs, static_cast<int>(flags.points));
  if (!points.ok()) return Complain(points.status().message(), kExitUsage);
  JobFlags programs;
  programs.bin_dir = flags.bin_dir;
  if (const auto found = FindProgramsOf(programs); !found.ok()) {
    return Complain(found.status().message(), kExitUsage);
  }
  for (const SweepPoint& point : *points) {  // What --set of the user makes of a job.
    const auto job = SweepJob(point.shape, flags.steps, "data");
    if (!job.ok()) return Complain(job.status().message(), kExitUsage);
    const auto changed = ParseJob(JobToText(*job), "the sweep's job", flags.set, {});
    if (!changed.ok()) return Complain(changed.status().message(), kExitUsage);
  }
  std::unique_ptr<ShapedHosts> hosts;
  if (!flags.link.empty()) {
    auto made = ShapedHosts::Create(static_cast<int>(flags.servers + flags.workers), flags.link);
    if (!made.ok()) return Complain(made.status().message(), kExitUsage);
    hosts = *std::move(made);
  }
  const auto out = RunDirectory::Create(flags.out, "sweep", absl::Now());
  if (!out.ok()) return Complain(out.status().message(), kExitUsage);
  SweepBench bench(flags, *std::move(points), hosts.get(), *out, &signals);
  return RunBench(&bench, &signals);
}

}  // namespace thermocline
