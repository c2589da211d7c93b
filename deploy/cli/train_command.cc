// thermocline train: runs a job's servers and workers on this machine.
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/cli/train_job.h"
#include "deploy/runner/summary.h"

namespace thermocline {
namespace {

std::string HowToGoOn(const RunSetup& setup, const absl::Status& why) {
  if (!setup.job.has_checkpoint()) return "";
  if (absl::IsDataLoss(why)) {
    PosixDisk disk;
    const auto instead =
        InsteadOfDamagedBase(CheckpointStore(&disk, setup.job.checkpoint().directory()));
    if (instead.has_value() && instead->empty()) return "\nno other checkpoint is whole";
    if (instead.has_value()) {
      return absl::StrCat("\nto go on from another checkpoint: thermocline train --run-dir ",
                          setup.directory.path(), " --resume-from NAME; whole, by every byte: ",
                          absl::StrJoin(*instead, ", "));
    }
  }
  PosixDisk disk;
  const CheckpointStore store(&disk, setup.job.checkpoint().directory());
  const auto next = FindNextGeneration(store, setup.job.name(), "");
  if (!next.ok()) return "";
  return absl::StrCat(next->start.base.empty()
                          ? "\nthere is no checkpoint yet; to begin anew in this run directory: "
                          : "\nto go on from the last checkpoint: ",
                      "thermocline train --resume --run-dir ", setup.directory.path());
}

int RunTrain(const Flags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto setup = SetUpTraining(flags);
  if (!setup.ok()) return Complain(setup.status().message(), kExitUsage);

  const auto result = RunJobOnConsole(setup->job, setup->options, setup->directory, &signals);
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(absl::StrCat("job ", setup->job.name(), ": ", why.message(), "\nrun directory: ",
                               setup->directory.path(), HowToGoOn(*setup, why)),
                  &signals);
    return kExitFailed;
  };
  if (!result.ok()) return fail(result.status());
  const std::string text =
      absl::StrCat("\n", RenderServerStats(result->servers), "\n", RenderSummary(result->summary),
                   "run directory: ", setup->directory.path(), "\n");
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals).Write(text);
  if (!result->shortfall.ok()) return fail(result->shortfall);
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

Command TrainCommand() {
  Command command;
  command.name = "train";
  command.arguments = "[JOB] [FLAGS]";
  command.summary = "runs a job: servers and workers as processes on this machine";
  command.details =
      "Runs the job that the file JOB describes (a message Job of proto/job.proto in protobuf's\n"
      "text format; deploy/jobs has examples) and supervises it until the model is trained and\n"
      "evaluated. Ctrl-C stops all of it.\n\n"
      "The run directory gets the job as it was run (job.textproto), one log for each process,\n"
      "metrics.jsonl, worker-N.json, server_stats.json, summary.json, and the checkpoints.\n"
      "`thermocline stats --run-dir DIR` shows what the processes do, and afterwards what they "
      "left.\n\n"
      "--resume goes on with a job that has checkpoints, however it was stopped, at the sample\n"
      "behind its newest one. JOB may be left out. Another JOB, or flags, may change all but what\n"
      "makes a step other samples or a row another row (batch size, seed, tables, optimizers,\n"
      "features, how the data is read): servers, workers, passes, learning rate, cache and so "
      "on.\n";
  command.examples =
      "  thermocline train deploy/jobs/criteo_kaggle.textproto --data train.txt\n"
      "  thermocline train deploy/jobs/quickstart.textproto --servers 4 --workers 2\n"
      "  thermocline train job.textproto --set train.learning_rate.base=0.02 --set seed=7\n"
      "  thermocline train --resume --run-dir runs/quickstart-20240101-120000 --servers 8\n";
  command.flags = JobFlags();
  command.flags.push_back(
      {"run-dir", "DIR", "default: runs/NAME-TIME; must not hold files, but with --resume"});
  command.flags.push_back({"resume", "", "goes on with the run in --run-dir"});
  command.flags.push_back(
      {"resume-from", "NAME",
       "resumes from this checkpoint (name or path, or \"best\"), not the newest"});
  command.run = RunTrain;
  return command;
}

}  // namespace thermocline
