// thermocline stop: ends a job, with a checkpoint.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/disk/file_list.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/engines/engine.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/metrics_log.h"
#include "deploy/runner/checkpoint_requests.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPollPeriod = absl::Milliseconds(200);

struct StopFlags {
  std::string target;  // a run directory, or an engine's number
  int64_t timeout_s = 300;
};

// A job to stop: in a run directory, perhaps an engine's.
struct Target {
  std::string run_dir;
  std::optional<EngineJob> job;

  absl::StatusOr<EngineState> State() const {
    using What = EngineState::What;
    if (job.has_value()) return AskEngine(*job);
    const bool runs = RunLock::IsHeld(run_dir);
    return EngineState{runs ? What::kRunning : What::kEnded, runs ? "running" : "ended"};
  }
};

absl::StatusOr<Target> FindTarget(const std::string& name) {
  Target target;
  if (fs::is_directory(name)) {
    target.run_dir = AbsolutePath(name);
    const auto job = ReadEngineJob(target.run_dir);
    if (job.ok()) target.job = *job;
    return target;
  }
  ASSIGN_OR_RETURN(target.job, FindEngineJob(name));
  target.run_dir = target.job->run_dir;
  return target;
}

// The last checkpoint, so that what was trained since the one before is not lost.
void MakeCheckpoint(const Target& target, absl::Duration timeout, SignalWatch* signals) {
  const auto job = LoadJob(target.run_dir + "/job.textproto", {});
  if (!job.ok() || !WritesCheckpoints(*job)) return;
  if (!ReadMetricsTail(target.run_dir + "/metrics.jsonl").progress.has_value())
    return;  // Nothing is trained.
  std::printf("writing a checkpoint\n");
  std::fflush(stdout);
  const auto name = AskForCheckpoint(target.run_dir, timeout, [&] {
    signals->Drain();
    return signals->stop_requests() > 0;
  });
  if (name.ok()) {
    std::printf("checkpoint %s\n", name->c_str());
  } else {
    std::printf("no checkpoint: %s\n", std::string(name.status().message()).c_str());
  }
  std::fflush(stdout);
}

// kDeadlineExceeded, kCancelled: it has not ended. kUnavailable: nothing tells whether it has
// begun.
absl::Status Stop(const Target& target, absl::Duration timeout, SignalWatch* signals) {
  using What = EngineState::What;
  const auto asked = target.State();
  if (!asked.ok()) {
    RETURN_IF_ERROR(AskToStop(target.run_dir));
    return absl::UnavailableError(
        absl::StrCat(asked.status().message(), "; the job is asked to stop (", target.run_dir,
                     "/stop.request): it does not start again, and ends where it runs"));
  }
  EngineState state = *asked;
  if (state.what == What::kEnded) {
    return absl::FailedPreconditionError(
        absl::StrCat("no job runs in ", target.run_dir, ": ", state.text));
  }
  if (RunLock::IsHeld(target.run_dir)) MakeCheckpoint(target, timeout, signals);
  const Stopwatch watch;
  absl::Duration ask_at;
  bool runs = true;
  // From here on the job does not start again: neither does its script, nor does an engine requeue
  // it. A start that was under way may have withdrawn the request.
  while (true) {
    const bool ran = std::exchange(runs, RunLock::IsHeld(target.run_dir));
    if (watch.Elapsed() >= ask_at || runs != ran) {
      ask_at = watch.Elapsed() + kEnginePeriod;
      RETURN_IF_ERROR(AskToStop(target.run_dir));
      const auto now = target.State();
      // Where no engine answers, the lock has shown that it ran.
      if (!runs && (!now.ok() || now->what == What::kEnded)) return absl::OkStatus();
      if (now.ok()) state = *now;
      if (now.ok() && state.what == What::kWaiting) RETURN_IF_ERROR(Cancel(*target.job));
    }
    signals->Drain();
    if (signals->stop_requests() > 0)
      return absl::CancelledError("the job is asked to stop, and has not ended yet");
    if (watch.Elapsed() > timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("the job is asked to stop, and has not ended within ",
                       absl::FormatDuration(timeout), ": ", state.text));
    }
    absl::SleepFor(kPollPeriod);
  }
}

int RunStop(const StopFlags& flags) {
  SignalWatch signals;
  const auto target = FindTarget(flags.target);
  if (!target.ok()) return Complain(target.status().message(), kExitUsage);
  const absl::Status stopped = Stop(*target, absl::Seconds(flags.timeout_s), &signals);
  if (!stopped.ok()) return Complain(stopped.message(), kExitFailed);
  const std::string command =
      target->job.has_value()
          ? ResumeCommand(*target->job)
          : absl::StrCat("thermocline train --resume --run-dir ", target->run_dir);
  std::printf("stopped; to go on: %s\n", command.c_str());
  return kExitDone;
}

}  // namespace

void AddStop(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<StopFlags>();
  CLI::App* command = AddCommand(
      app, "stop", "ends a running job, with a checkpoint if it writes any",
      R"(TARGET is a run directory, or the number of a job in `thermocline jobs`. The job can be gone on with
(--resume). A job that still waits for its engine is taken out of the queue.)");
  AddValue(command, "TARGET", &flags->target, "DIR|ID", "the job; see below")->required();
  AddValue(command, "--timeout", &flags->timeout_s, "SECONDS",
           "how long to wait for the checkpoint, and again for the end; default 300")
      ->transform(WholeNumber(1, 24 * 3600));
  OnCommand(command, action, RunStop, flags);
}

}  // namespace thermocline
