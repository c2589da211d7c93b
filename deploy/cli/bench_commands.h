// The benchmarks that run whole jobs: their flags.
#ifndef THERMOCLINE_DEPLOY_CLI_BENCH_COMMANDS_H_
#define THERMOCLINE_DEPLOY_CLI_BENCH_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/process_limits.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "proto/job.pb.h"

namespace thermocline {

struct BenchTrainFlags : JobFlags {
  int64_t repeats = 3;
};

struct BenchArmsFlags : JobFlags {
  std::string arms;     // separated by commas; "": all
  std::string budgets;  // separated by commas
  std::string link;     // a rate; "": loopback
  int64_t seeds = 5;
  int64_t evaluations = 20;   // in a run, where the job does not say when to evaluate
  std::optional<double> auc;  // that runs are timed to
  std::string out;
};

struct BenchSweepFlags {
  std::string knobs;  // separated by commas; "": all
  int64_t points = 3;
  int64_t steps = 40;
  int64_t servers = 1, workers = 1;
  std::string link;              // a rate; "": loopback
  std::vector<std::string> set;  // "FIELD=VALUE"
  std::string out, bin_dir;
};

// Runs a bench that is ready to its end, prints and writes what there is, even where it was cut
// off. Returns the exit code.
template <typename Bench>
int RunBench(Bench* bench, SignalWatch* signals) {
  const absl::Status status = bench->Run();
  const absl::Status reported = bench->Report();
  for (const absl::Status& error : {status, reported}) {
    if (error.ok()) continue;
    ReportFailure(error.message(), signals);
    return kExitFailed;
  }
  return bench->has_failed() ? kExitFailed : kExitDone;
}

// The job of bench arms. Its calibration needs no `fae` beside it: then the first of `budgets`
// (separated by commas) is set as fae.budget, in *flags as well. Errors: as LoadJobOf.
absl::StatusOr<Job> LoadJobOfArms(const std::string& budgets, JobFlags* flags);

int RunBenchTrain(const BenchTrainFlags& flags);
int RunBenchArms(const BenchArmsFlags& flags);
int RunBenchSweep(const BenchSweepFlags& flags);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_BENCH_COMMANDS_H_
