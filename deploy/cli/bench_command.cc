// thermocline bench: how fast this machine is. `bench train` is here; `bench pull` and `bench push`
// are a program of their own.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "common/process/child_process.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/hot_rows.h"
#include "deploy/cli/job_certificates.h"
#include "deploy/cli/job_files.h"
#include "deploy/cli/run_setup.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

struct BenchTrainFlags : JobFlags {
  int64_t repeats = 3;
};

std::string RenderSetup(const Job& job) {
  const Cluster& cluster = job.cluster();
  const std::string servers =
      HasEmbeddedServer(cluster) ? "embedded server" : absl::StrCat(cluster.servers(), " servers");
  return absl::StrFormat(
      "setup: job %s, data %s, batch %u, %s x %u threads, %u workers x %u threads, "
      "%d hardware threads\n",
      job.name(), DescribeData(job.data()).train().path(0), job.train().batch_size(), servers,
      cluster.server_threads(), cluster.workers(), cluster.worker_threads(), HardwareThreads());
}

// The middle value, or the mean of the two in the middle.
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

int RunBenchTrain(const BenchTrainFlags& flags) {
  SignalWatch signals;
  auto job = LoadJobOf(flags);
  if (!job.ok()) return Complain(job.status().message(), kExitUsage);
  const auto programs = FindProgramsOf(flags);
  if (!programs.ok()) return Complain(programs.status().message(), kExitUsage);
  const absl::Status script = CheckScriptProgram(*job);
  if (!script.ok()) return Complain(script.message(), kExitUsage);
  const auto parent = RunDirectory::Create(flags.run_dir, absl::StrCat(job->name(), "-bench"),
                                           absl::Now(), job->readers());
  if (!parent.ok()) return Complain(parent.status().message(), kExitUsage);
  MakeFilesFor(job->readers());

  const auto fail = [&signals](absl::string_view why) {
    ReportFailure(why, &signals);
    return kExitFailed;
  };
  JobOptions options;
  options.programs = *programs;
  Console out(STDOUT_FILENO, &signals);
  out.Write(RenderSetup(*job));
  if (CountsHotRows(*job)) {  // Once, for all runs.
    parent->FillHotDirectory(&*job);
    auto found = FindHotRows(*job, flags.bin_dir, &signals, STDOUT_FILENO);
    if (!found.ok()) {
      fail(found.status().message());
      return ExitCodeOfHotRows(found.status());
    }
    options.hot_rows = *std::move(found);
  }
  std::vector<double> rates;
  std::vector<std::string> digests;
  for (int64_t run = 0; run < flags.repeats; ++run) {
    const auto directory = RunDirectory::Create(parent->File(absl::StrCat("run-", run)), "",
                                                absl::Now(), job->readers());
    if (!directory.ok()) return fail(directory.status().message());
    Job run_job = *job;
    run_job.mutable_checkpoint()->clear_directory();  // Each run has its own.
    if (run_job.checkpoint().every_steps() == 0) {    // The trained model's is not asked for.
      run_job.mutable_checkpoint()->set_none(true);
      if (job->has_evaluate()) run_job.mutable_evaluate()->set_keep_best(false);
    }
    FillCheckpointDirectory(*directory, &run_job);
    const absl::Status certificates = MakeCertificates(*directory, &run_job);
    if (!certificates.ok()) return fail(certificates.message());
    const auto result = RunJobOnConsole(run_job, options, *directory, &signals);
    if (!result.ok()) return fail(result.status().message());
    if (!result->shortfall.ok()) return fail(result->shortfall.message());
    const auto rate = NumberAt(result->summary, "samples_per_s");
    if (!rate) return fail("the workers reported no samples/s");
    rates.push_back(*rate);
    const auto& digest = result->summary["model_digest"];
    if (!digest.is_string()) return fail("the servers did not say the model digest");
    digests.push_back(digest.get<std::string>());
    out.Write(absl::StrFormat("run %d of %d: %.0f samples/s, AUC %s\n", run + 1, flags.repeats,
                              *rate, result->summary["auc"].dump()));
    if (signals.stop_requests() > 0) return fail("stopped");
  }
  out.Write(RenderResult(rates, digests));
  return signals.stop_requests() > 0 ? kExitFailed : kExitDone;
}

void AddTrainRuns(CLI::App* command, Action* action) {
  const auto flags = std::make_shared<BenchTrainFlags>();
  CLI::App* train =
      AddCommand(command, "train", "runs a job several times: median and spread of samples/s",
                 "Checkpoints are written only on the way, where checkpoint.every_steps says so.");
  AddJobFlags(train, flags.get(), true, "gets one folder a run; default: runs/NAME-bench-TIME");
  AddValue(train, "--repeats", &flags->repeats, "N", "runs of the job; default 3")
      ->transform(WholeNumber(1, 1000));
  OnCommand(train, action, RunBenchTrain, flags);
}

}  // namespace

void AddBench(CLI::App* app, Action* action) {
  CLI::App* command = AddCommand(
      app, "bench", "measures this machine: pulls, pushes, whole training runs", R"(examples:
  thermocline bench pull
  thermocline bench train deploy/jobs/kaggle_npy.textproto --data clicklog --repeats 5)");
  command->require_subcommand(1);
  // Only for the pages: RunCommandLine runs these two before CLI11 parses.
  const char* program =
      R"(A program of its own: bazel build //tests/benchmarks:thermocline-bench-pull
`thermocline bench pull --help` lists its flags.)";
  AddCommand(command, "pull", "pulls over loopback, beside a bare gRPC echo of the same sizes",
             program);
  AddCommand(command, "push", "pushes, likewise", program);
  AddTrainRuns(command, action);
}

int RunBenchProgram(const std::vector<std::string>& arguments) {
  const auto path = FindProgram("thermocline-bench-pull", "");
  if (!path.ok()) {
    return Complain(absl::StrCat(path.status().message(),
                                 "; make it with: bazel build "
                                 "//tests/benchmarks:thermocline-bench-pull"),
                    kExitUsage);
  }
  std::vector<char*> argv = {const_cast<char*>(path->c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(path->c_str(), argv.data());
  return Complain(absl::StrCat("can't run ", *path, ": ", std::strerror(errno)), kExitFailed);
}

}  // namespace thermocline
