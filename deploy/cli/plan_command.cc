// thermocline plan: what a job will need, beside what this machine has.
#include <unistd.h>

#include "common/json/message_json.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/data_figures.h"
#include "deploy/cli/run_setup.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"

namespace thermocline {
namespace {

struct PlanFlags : JobFlags {
  FiguresFlags figures;
  double samples_per_s = 0;  // 0: not known
  bool json = false;
};

int RunPlan(const PlanFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto job = LoadJobOf(flags);
  if (!job.ok()) return ReportFailure(job.status(), &signals);
  const auto figures = FiguresOf(*job, flags.figures, flags.bin_dir,
                                 flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!figures.ok()) return ReportFailure(figures.status(), &signals);
  PlanInputs inputs;
  if (figures->has_value()) inputs.figures = &**figures;
  inputs.samples_per_s = flags.samples_per_s;
  const std::string& folder = job->checkpoint().directory();
  Machine machine = ThisMachine(folder.empty() ? "runs" : folder);
  if (!machine.gpus.empty()) machine.gpu_memory_bytes = SmallestGpuMemory();
  const auto plan = PlanOf(*job, inputs, machine);
  if (!plan.ok()) return ReportFailure(plan.status(), &signals);
  const int requests = signals.stop_requests();
  std::string text;
  if (flags.json) {
    nlohmann::ordered_json json = PlanToJson(*plan, machine);
    json["job"] = MessageToJson(*job);
    text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  } else {
    text = RenderPlan(*job, *plan, machine);
  }
  Console(STDOUT_FILENO, &signals).Write(text);
  const bool fits = Fits(*job, *plan, machine);
  return fits && signals.stop_requests() == requests ? kExitDone : kExitFailed;
}

}  // namespace

void AddPlan(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = AddCommand(
      app, "plan", "says what a job will need of memory, disk and network",
      R"(Computes, without running the job, what its servers and workers will need of memory (rows,
optimizer state, index, pushes that wait, checkpoints), of device memory, of disk (checkpoints,
push logs, RocksDB) and of bytes on the network in a step, beside what this machine has.

How many rows the tables will have is known from --figures (what `inspect --json` has printed for
the job's data), from --scan (which reads the data now), or from `buckets` and the like in the job.
Without these the plan lacks those tables, and says so. Exit code 1: the job does not fit.

examples:
  thermocline inspect train.csv --json > figures.json
  thermocline plan job.textproto --figures figures.json --servers 4
  thermocline plan job.textproto --scan --samples-per-s 100000)");
  AddJobFlags(command, flags.get(), true, nullptr);
  CLI::Option* figures = AddValue(command, "--figures", &flags->figures.file, "FILE",
                                  "what inspect --json has printed");
  RefuseBoth(figures, command->add_flag("--scan", flags->figures.scan,
                                        "reads the job's data first, as inspect does"));
  AddValue(command, "--samples-per-s", &flags->samples_per_s, "N",
           "the speed of training, for the network's bytes per second");
  command->add_flag("--json", flags->json,
                    "prints the plan as JSON; progress goes to standard error");
  OnCommand(command, action, RunPlan, flags);
}

}  // namespace thermocline
