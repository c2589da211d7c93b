// thermocline train: runs a job's servers and workers, on this machine or over several hosts.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/hot_rows.h"
#include "deploy/cli/run_setup.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/http/http_feed.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

// The last lines about a run: where its files are, and what shows them.
std::string WhereItIs(const RunSetup& setup) {
  const std::string& run_dir = setup.directory.path();
  return absl::StrCat("run directory: ", run_dir, "\nreport: thermocline report ",
                      ShellWord(run_dir));
}

std::string ResumeCommandOf(const RunSetup& setup) {
  const std::string& run_dir = setup.directory.path();
  const std::string command = absl::StrCat("thermocline train --resume --run-dir ", run_dir);
  if (setup.options.num_hosts == 0) return command;
  const auto submitted = ReadEngineJob(run_dir);
  return submitted.ok() ? ResumeCommand(*submitted)
                        : absl::StrCat(command, " --nodes ", setup.options.num_hosts, " --listen ",
                                       setup.options.listen);
}

// A job that was resumed and has failed before it made a checkpoint may fail from the same one
// again, such as where a number in it is not finite.
std::string HowToGoOnFromAnOlderOne(const RunSetup& setup, const CheckpointStore& store,
                                    const GenerationStart& next) {
  const GenerationStart& first = setup.options.start;
  const bool is_the_same = next.base == first.base && next.base_generation == first.base_generation;
  if (!setup.options.is_resumed || !is_the_same) return "";
  const auto list = store.List();
  if (!list.ok()) return "";
  const ListedCheckpoint* older = nullptr;
  for (const ListedCheckpoint& each : *list) {
    if (!each.status.ok() || each.id.step >= next.base_step) continue;
    if (older == nullptr || older->id.step < each.id.step) older = &each;
  }
  if (older == nullptr) return "";
  return absl::StrCat("\nwhere it fails from that one again, from an older one: thermocline train ",
                      "--run-dir ", setup.directory.path(), " --resume-from ", older->name);
}

// How to go on where there is no checkpoint yet. What the job itself has brought about, it would
// bring about again.
std::string HowToBeginAnew(const RunSetup& setup, const CheckpointStore& store,
                           const std::string& job_file) {
  const auto last = store.LastRecord();
  const bool is_at_fault =
      last.ok() && last->has_value() && (*last)->outcome().what() == JobOutcome::FAILED;
  if (!is_at_fault || setup.options.num_hosts > 0) {
    return absl::StrCat("\nthere is no checkpoint yet; to begin anew in this run directory: ",
                        ResumeCommandOf(setup));
  }
  const std::string& run_dir = setup.directory.path();
  return absl::StrCat(
      "\nthere is no checkpoint yet; to begin anew in this run directory with another job file, or "
      "other flags: thermocline train ",
      job_file.empty() ? setup.directory.File("job.textproto") : job_file, " --resume --run-dir ",
      run_dir);
}

std::string HowToGoOn(const RunSetup& setup, const TrainFlags& flags, const absl::Status& why) {
  if (!WritesCheckpoints(setup.job)) return "";
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
  if (next->start.base.empty()) return HowToBeginAnew(setup, store, flags.job);
  if (absl::IsInvalidArgument(why)) {
    return absl::StrCat(
        "\nto go on would end the same way; a new run with another job file may begin with what is "
        "trained: thermocline train JOB --init-from ",
        setup.directory.path());
  }
  return absl::StrCat(
      "\nto go on from the last checkpoint: ", ResumeCommandOf(setup),
      absl::IsCancelled(why) ? "" : HowToGoOnFromAnOlderOne(setup, store, next->start));
}

// A job that had ended before this start of its controller.
int ReportOutcome(const RunSetup& setup) {
  const JobOutcome& outcome = *setup.outcome;
  const std::string job = absl::StrCat("job ", setup.job.name());
  const std::string where = absl::StrCat("\nrun directory: ", setup.directory.path());
  if (outcome.what() == JobOutcome::TRAINED) {
    std::printf("%s has been trained before%s\n", job.c_str(), where.c_str());
    return kExitDone;
  }
  return Complain(absl::StrCat(job,
                               outcome.what() == JobOutcome::STOPPED ? " was stopped before: "
                                                                     : " has failed before: ",
                               outcome.message(), where),
                  kExitFailed);
}

// The job's web server; null: it wants none. An engine's restart goes on without one that can't be
// had, since the address may be another program's on this host.
absl::StatusOr<std::unique_ptr<HttpFeed>> OpenPage(const RunSetup& setup, bool restarted,
                                                   SignalWatch* signals) {
  if (setup.job.cluster().http().address().empty()) return nullptr;
  auto opened = HttpFeed::Open(setup.job, setup.directory);
  if (opened.ok() || !restarted) return opened;
  ReportFailure(absl::StrCat("the job runs without its page: ", opened.status().message()),
                signals);
  return nullptr;
}

int RunTrain(const TrainFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  absl::StatusOr<RunSetup> setup = [&] {
    ByteScan scan = ScanOnConsole(STDOUT_FILENO, &signals);
    return SetUpTraining(flags, &scan);
  }();
  if (!setup.ok()) {
    const int code = ComplainAboutSetup(setup.status());
    return flags.restarted && RunLock::IsHeld(flags.run_dir) ? kExitInUse : code;
  }
  if (setup->outcome.has_value()) return ReportOutcome(*setup);
  std::string warning;
  if (setup->options.num_hosts == 0) {  // Else this machine takes no process of the job.
    const absl::Status fits =
        CheckStart(setup->job, ThisMachine(setup->directory.path()), &warning);
    if (!fits.ok()) return Complain(fits.message(), kExitUsage);
  }
  if (!warning.empty()) ReportFailure(warning, &signals);

  const auto http = OpenPage(*setup, flags.restarted, &signals);
  if (!http.ok()) return Complain(http.status().message(), kExitUsage);
  setup->options.http = http->get();

  if (CountsHotRows(setup->job)) {
    auto found = FindHotRows(setup->job, flags.bin_dir, &signals, STDOUT_FILENO);
    absl::Status status = found.status();
    const bool goes_on = !setup->options.start.base.empty();
    if (status.ok() && setup->job.has_fae()) {
      status = KeepPackOfRun(setup->directory, goes_on, *found);
    }
    if (!status.ok()) {
      NoteFailedPacking(setup->directory, status);
      ReportFailure(absl::StrCat("job ", setup->job.name(), ": ", status.message()), &signals);
      return ExitCodeOfHotRows(status);
    }
    setup->options.hot_rows = *std::move(found);
  }
  const auto result = RunJobOnConsole(setup->job, setup->options, setup->directory, &signals);
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(absl::StrCat("job ", setup->job.name(), ": ", why.message(), "\n",
                               WhereItIs(*setup), HowToGoOn(*setup, flags, why)),
                  &signals);
    return kExitFailed;
  };
  if (!result.ok()) return fail(result.status());
  const std::string text = absl::StrCat("\n", RenderServerStats(result->servers), "\n",
                                        RenderSummary(result->summary), WhereItIs(*setup), "\n");
  const int requests = signals.stop_requests();
  Console(STDOUT_FILENO, &signals).Write(text);
  if (!result->shortfall.ok()) return fail(result->shortfall);
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

void AddTrain(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = AddCommand(
      app, "train", "runs a job: servers and workers on this machine, or over several hosts",
      R"(Runs the job that the file JOB describes (a message Job of proto/job.proto in protobuf's
text format; deploy/jobs has examples) until the model is trained and evaluated. Ctrl-C stops it,
with a checkpoint of what is trained; again, at once.

The run directory gets the job as it was run (job.textproto), one log for each process,
metrics.jsonl, worker-N.json, server_stats.json, summary.json, and the checkpoints.
`thermocline stats --run-dir DIR` shows what the processes do and, after the run, their last stats.

--resume goes on with a job that has checkpoints, however it was stopped, at the sample after its
newest checkpoint. JOB may be left out. Another JOB, or flags, may change everything except what
defines the samples of a step or the contents of a row (batch size, seed, tables, optimizers,
features, how the data is read): servers, workers, passes, learning rate, cache and so on. The data
have to be the same: the sizes of the files, and the bytes at their ends, in their order. Files may
have been moved or renamed, and others may have been added behind them. --other-data goes on with
other data all the same.

--init-from begins a new run, from step 0 on, with the rows, optimizer state and dense parameters of
another run's checkpoint: other data, rates, seed, servers and workers. Its path is as for `eval`.

examples:
  thermocline train deploy/jobs/criteo_kaggle.textproto --data train.txt
  thermocline train job.textproto --data day_2.gz --init-from runs/day_1
  thermocline train deploy/jobs/quickstart.textproto --servers 4 --workers 2
  thermocline train job.textproto --set train.learning_rate.base=0.02 --set seed=7
  thermocline train --resume --run-dir runs/quickstart-20240101-120000 --servers 8
  thermocline train job.textproto --nodes 4 --listen 10.0.0.1:7070 --run-dir /shared/run)");
  AddJobFlags(command, flags.get(), true,
              "default: runs/NAME-TIME; without --resume it must hold no files");
  AddHttpFlag(command, flags.get());
  command->add_flag("--resume", flags->resume, "goes on with the run in --run-dir");
  AddValue(command, "--resume-from", &flags->resume_from, "NAME",
           "resumes from this checkpoint (name or path, or \"best\"), not the newest");
  command->add_flag("--restarted", flags->restarted,
                    "--resume by an engine: only reports a job that has ended, and goes on with "
                    "what is left of its limits");
  command->add_flag("--other-data", flags->other_data,
                    "resumes although the data are not those of the checkpoint");
  command->add_flag("--or-begin", flags->or_begin,
                    "with --resume or --restarted, of an engine's first submission: begins the job "
                    "where its run directory has no job file yet");
  command->add_flag("--embed", flags->embed,
                    "as --servers 0, where the job says nothing of servers, several workers and "
                    "durability");
  AddValue(command, "--init-from", &flags->init_from, "PATH",
           "begins with the model of another run's checkpoint: its path, or the run's");
  AddValue(command, "--trace", &flags->trace, "FIRST:LAST",
           "writes RUN_DIR/trace.json: what all processes do in these steps, for Perfetto");
  AddValue(command, "--nodes", &flags->nodes, "N",
           "runs the job over N hosts, on each of which `thermocline node` runs")
      ->check(WholeNumber(1, 1000));
  AddValue(command, "--listen", &flags->listen, "HOST:PORT",
           "where nodes find this controller; with --nodes");
  OnCommand(command, action, RunTrain, flags);
}

}  // namespace thermocline
