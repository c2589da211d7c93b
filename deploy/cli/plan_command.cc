// thermocline plan: what a job will need, beside what this machine has.
#include <unistd.h>

#include "deploy/cli/command_line.h"
#include "deploy/cli/console.h"
#include "deploy/cli/data_figures.h"
#include "deploy/cli/run_setup.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"

namespace thermocline {

int RunPlan(const PlanFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(why.message(), &signals);
    return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
  };
  const FiguresFlags from = {flags.figures, flags.scan, flags.bin_dir};
  if (const absl::Status given = CheckFiguresFlags(from); !given.ok()) return fail(given);
  const auto job = LoadJobOf(flags);
  if (!job.ok()) return fail(job.status());
  const auto figures = FiguresOf(*job, from, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!figures.ok()) return fail(figures.status());
  PlanInputs inputs;
  if (figures->has_value()) inputs.figures = &**figures;
  inputs.samples_per_s = flags.samples_per_s;
  const std::string& folder = job->checkpoint().directory();
  Machine machine = ThisMachine(folder.empty() ? "runs" : folder);
  if (!machine.gpus.empty()) machine.gpu_memory_bytes = SmallestGpuMemory();
  const auto plan = PlanOf(*job, inputs, machine);
  if (!plan.ok()) return fail(plan.status());
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals)
      .Write(flags.json ? PlanToJson(*plan, machine).dump(2) + "\n"
                        : RenderPlan(*job, *plan, machine));
  const bool fits = Fits(*job, *plan, machine);
  return fits && signals.stop_requests() == requests ? kExitDone : kExitFailed;
}

}  // namespace thermocline
