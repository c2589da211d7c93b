// The commands of engines on the command line.
#include <memory>

#include "deploy/cli/command_pages.h"
#include "deploy/cli/host_commands.h"

namespace thermocline {
namespace {

void AddSlurmFlags(CLI::App* command, SubmitFlags* flags) {
  AddValue(command, "--partition", &flags->partition, "NAME", "Slurm: of the cluster");
  AddValue(command, "--account", &flags->account, "NAME", "Slurm: that pays");
  AddValue(command, "--time", &flags->time, "TIME",
           "Slurm: the walltime, as of sbatch: 2-00:00:00");
  AddValue(command, "--notice", &flags->notice_s, "SECONDS",
           "Slurm: how long before the walltime the job writes a checkpoint and goes back into the "
           "queue; default 300")
      ->transform(WholeNumber(10, 65535));
  AddValue(command, "--sbatch", &flags->sbatch, "FLAG",
           "Slurm: a further flag of sbatch: --sbatch=--constraint=avx2 (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--memory", &flags->memory, "SIZE",
           "Slurm: of each host; default: as `plan` finds, or all where rows are not known");
  command->add_flag("--scan", flags->scan,
                    "Slurm: reads the data first, as `plan --scan`, for the rows of the tables");
  AddValue(command, "--figures", &flags->figures, "FILE",
           "Slurm: what `inspect --json` has printed of the data, instead of --scan");
  AddValue(command, "--cores", &flags->cores, "N",
           "Slurm: of each host; default: the job's threads, or all where the job leaves them open")
      ->transform(WholeNumber(1, 4096));
  AddValue(command, "--gpus", &flags->gpus, "N",
           "Slurm: of each host; default: one a worker, with device: CUDA")
      ->transform(WholeNumber(0, 64));
}

}  // namespace

void AddSubmit(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<SubmitFlags>();
  CLI::App* command = AddCommand(
      app, "submit", "gives a job to Slurm, or to a list of hosts over ssh, and follows it",
      R"(Writes a script to RUN_DIR/submit that runs the controller of the job (`thermocline train --nodes`)
and an agent on each host (`thermocline node`), and hands it to the engine. All hosts must see the
run directory, the data and this program at the same paths. Shows the job's progress until it ends;
Ctrl-C ends that, not the job (`thermocline stop RUN_DIR`).

slurm: before the walltime, and at a preemption, the job writes a checkpoint and goes back into the
queue; started again it goes on where it was. ssh: needs ssh to each host without a password.

examples:
  thermocline submit job.textproto --engine slurm --nodes 4 --run-dir /shared/runs/a --time 8:00:00
  thermocline submit job.textproto --engine ssh --hosts a1,a2,a3 --run-dir /shared/runs/b
  thermocline submit job.textproto --engine slurm --nodes 4 --write-only
  thermocline submit --resume --run-dir /shared/runs/a --nodes 6
  thermocline submit --run-dir /shared/runs/a    # again, one that was stopped before it began)");
  AddJobFlags(command, flags.get(), true, "that all hosts see; default: runs/NAME-TIME");
  AddValue(command, "--engine", &flags->engine, "ENGINE", "slurm or ssh");
  AddValue(command, "--nodes", &flags->nodes, "N", "on how many hosts; ssh: default all of --hosts")
      ->transform(WholeNumber(1, 4096));
  AddValue(command, "--hosts", &flags->hosts, "HOST,HOST", "ssh: the hosts, HOST or USER@HOST")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddValue(command, "--controller", &flags->controller, "HOST",
           "ssh: the one of --hosts that the controller runs on; default: this machine");
  command->add_flag("--resume", flags->resume,
                    "goes on with the run in --run-dir, with the flags of its last submission "
                    "unless others are given");
  command->add_flag("--write-only", flags->write_only, "writes the script, and starts nothing");
  command->add_flag("--detach", flags->detach, "does not wait for the job");
  AddSlurmFlags(command, flags.get());
  AddValue(command, "--port", &flags->port, "PORT",
           "of the controller; default: slurm 20000 and the last four digits of the job's number, "
           "ssh a free one from 20000 to 32000")
      ->transform(WholeNumber(1, 65535));
  AddValue(command, "--node-dir", &flags->node_dir, "DIR",
           "of agents, on each host's own disk; default: one in /tmp");
  AddValue(command, "--program", &flags->program, "PATH",
           "of thermocline on the hosts; default: this one's");
  OnCommand(command, action, RunSubmit, flags);
}

void AddJobs(CLI::App* app, Action* action) {
  const auto jobs = std::make_shared<JobsFlags>();
  CLI::App* command = AddCommand(app, "jobs", "shows the jobs that you have submitted", "");
  command->add_flag("--json", jobs->json, "prints JSON");
  OnCommand(command, action, RunJobs, jobs);

  const auto stop = std::make_shared<StopFlags>();
  command = AddCommand(
      app, "stop", "ends a running job, with a checkpoint if it writes any",
      R"(TARGET is a run directory, or the number of a job in `thermocline jobs`. The job can be gone on with
(--resume). A job that still waits for its engine is taken out of the queue.)");
  AddValue(command, "TARGET", &stop->target, "DIR|ID", "the job; see below")->required();
  AddValue(command, "--timeout", &stop->timeout_s, "SECONDS",
           "how long to wait for the checkpoint, and again for the end; default 300")
      ->transform(WholeNumber(1, 24 * 3600));
  OnCommand(command, action, RunStop, stop);
}

}  // namespace thermocline
