// thermocline bench: how fast this machine is. `bench train` is here; the others are programs of
// their own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/train_job.h"
#include "deploy/runner/summary.h"

namespace thermocline {
namespace {

constexpr int kMaxRepeats = 1000;

std::vector<FlagSpec> BenchTrainFlags() {
  std::vector<FlagSpec> flags = JobFlags();
  flags.push_back({"repeats", "N", "runs of the job; default 3"});
  flags.push_back({"run-dir", "DIR", "holds one folder a run; default: runs/NAME-bench-TIME"});
  return flags;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string RenderSetup(const Job& job) {
  return absl::StrFormat(
      "setup: job %s, data %s, batch %u, %u servers x %u threads, %u workers x %u threads, "
      "%u hardware threads\n",
      job.name(), job.data().path(), job.train().batch_size(), job.cluster().servers(),
      job.cluster().server_threads(), job.cluster().workers(), job.cluster().worker_threads(),
      std::thread::hardware_concurrency());
}

std::string RenderResult(const std::vector<double>& rates,
                         const std::vector<std::string>& digests) {
  const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
  const bool same = std::all_of(digests.begin(), digests.end(),
                                [&](const std::string& digest) { return digest == digests[0]; });
  return absl::StrFormat(
      "\nsamples/s: median %.0f, from %.0f to %.0f over %d runs\nmodel digest: %s\n", Median(rates),
      *low, *high, rates.size(), same ? digests[0] : "NOT the same in all runs");
}

int BenchTrain(const Flags& flags) {
  SignalWatch signals;
  const auto repeats = flags.GetInt("repeats", 3, 1, kMaxRepeats);
  if (!repeats.ok()) return Complain(repeats.status().message(), kExitUsage);
  const auto job = JobFromFlags(flags);
  if (!job.ok()) return Complain(job.status().message(), kExitUsage);
  const auto programs = ProgramsFromFlags(flags);
  if (!programs.ok()) return Complain(programs.status().message(), kExitUsage);
  const auto parent =
      RunDirectory::Create(flags.Get("run-dir"), absl::StrCat(job->name(), "-bench"), absl::Now());
  if (!parent.ok()) return Complain(parent.status().message(), kExitUsage);

  const auto fail = [&signals](absl::string_view why) {
    ReportFailure(why, &signals);
    return kExitFailed;
  };
  JobOptions options;
  options.programs = *programs;
  Console out(STDOUT_FILENO, &signals);
  out.Write(RenderSetup(*job));
  std::vector<double> rates;
  std::vector<std::string> digests;
  for (int64_t run = 0; run < *repeats; ++run) {
    const auto directory =
        RunDirectory::Create(parent->File(absl::StrCat("run-", run)), "", absl::Now());
    if (!directory.ok()) return fail(directory.status().message());
    Job run_job = *job;
    run_job.mutable_checkpoint()->clear_directory();  // Each run has its own.
    if (!job->has_checkpoint()) run_job.clear_checkpoint();
    FillCheckpointDirectory(*directory, &run_job);
    const auto result = RunJobOnConsole(run_job, options, *directory, &signals);
    if (!result.ok()) return fail(result.status().message());
    if (!result->shortfall.ok()) return fail(result->shortfall.message());
    const auto rate = NumberAt(result->summary, "samples_per_s");
    if (!rate) return fail("the workers reported no samples/s");
    rates.push_back(*rate);
    digests.push_back(result->summary["model_digest"].get<std::string>());
    out.Write(absl::StrFormat("run %d of %d: %.0f samples/s, AUC %s\n", run + 1, *repeats, *rate,
                              result->summary["auc"].dump()));
    if (signals.stop_requests() > 0) return fail("stopped");
  }
  out.Write(RenderResult(rates, digests));
  return signals.stop_requests() > 0 ? kExitFailed : kExitDone;
}

int Bench(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "" : arguments[0];
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (what == "train") {
    if (std::any_of(rest.begin(), rest.end(), IsHelpFlag)) {
      std::fputs(CommandHelp(BenchCommand()).c_str(), stdout);
      return kExitDone;
    }
    const auto flags = Flags::Parse(BenchTrainFlags(), rest);
    if (flags.ok()) return BenchTrain(*flags);
    return Complain(absl::StrCat(flags.status().message(), "; see thermocline help bench"),
                    kExitUsage);
  }
  if (what == "pull" || what == "push") {
    return ExecProgram("thermocline-bench-pull", "//tests/benchmarks:thermocline-bench-pull",
                       arguments);
  }
  return Complain("say what to measure: bench pull, bench push or bench train", kExitUsage);
}

}  // namespace

Command BenchCommand() {
  Command command;
  command.name = "bench";
  command.arguments = "pull|push|train [FLAGS]";
  command.summary = "measures this machine: pulls, pushes, whole training runs";
  command.details =
      "bench pull, bench push: a program of its own (bazel build\n"
      "//tests/benchmarks:thermocline-bench-pull makes it): a server and clients over loopback, "
      "beside a bare gRPC echo of the\n"
      "same sizes. Their flags: thermocline bench pull --help\n\n"
      "bench train JOB: runs a job several times and prints median and spread of samples/s.\n"
      "Its flags:\n";
  for (const FlagSpec& flag : BenchTrainFlags()) {
    absl::StrAppendFormat(&command.details, "  %-20s  %s\n",
                          absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value),
                          flag.help);
  }
  command.examples =
      "  thermocline bench pull\n"
      "  thermocline bench train deploy/jobs/kaggle_npy.textproto --data clicklog --repeats 5\n";
  command.passes_arguments = true;
  command.run_raw = Bench;
  return command;
}

}  // namespace thermocline
