// The dataflows that `bench arms` compares: each is the user's job with a few fields changed.
#ifndef THERMOCLINE_DEPLOY_BENCH_ARMS_H_
#define THERMOCLINE_DEPLOY_BENCH_ARMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/bench/run_figures.h"
#include "proto/job.pb.h"

namespace thermocline {

enum class Arm {
  kRemoteCpu,    // Every step pulls its rows and pushes gradients; all compute on the CPU.
  kRemoteGpu,    // The same, with the model on a CUDA device.
  kFae,          // Hot and cold batches, with an adaptive rate (FAE: Adnan et al., VLDB 2022).
  kFaeStatic,    // The same with one change a pass.
  kCacheStatic,  // The rows used most are held from the first step to the last.
  kCache,        // The rows that the next batches need are brought ahead.
};

const char* ArmName(Arm arm);
// "remote-cpu,fae"; each once. Errors: kInvalidArgument (names what is no arm)
absl::StatusOr<std::vector<Arm>> ParseArms(absl::string_view text);
std::vector<Arm> AllArms();
// "1MiB,2MiB"; ascending, each once. Errors: kInvalidArgument
absl::StatusOr<std::vector<uint64_t>> ParseBudgets(absl::string_view text);
// Whether an arm holds rows, so that there is one of it for each budget.
bool HoldsRows(Arm arm);

// What `train` is called with beside the user's flags.
struct JobChange {
  std::vector<std::string> set;    // "FIELD=VALUE"
  std::vector<std::string> clear;  // "FIELD", which goes before any `set`
};

// budget: bytes of the rows that each worker holds, with their optimizer state. pack_directory:
// where hot and cold batches are kept for other runs.
// REQUIRES: `job` is the user's, resolved
JobChange ChangeOf(Arm arm, const Job& job, uint64_t budget, const std::string& pack_directory);

// cache.budget such that a worker holds rows of `held_bytes`: a cache's budget has room for the
// rows of a batch, too, which the other arms have beside theirs.
uint64_t CacheBudget(const Job& job, uint64_t held_bytes);

// What all runs have in common: no checkpoints; without evaluations while they train, or with them
// as the job says, or else with so many, equally far apart in `steps` steps. Patience ends no run
// early.
JobChange CommonChange(const Job& job, int64_t steps, int64_t evaluations);

// Runs of one arm with one budget.
struct ArmRuns {
  Arm arm = Arm::kRemoteCpu;
  uint64_t budget = 0;          // 0: it holds no rows.
  std::string absence;          // Why there are no runs, or not all; "": there are.
  std::vector<uint64_t> seeds;  // [runs]
  std::vector<RunFigures> runs;
};

// The AUC that runs are timed to where the user names none: the lowest final AUC of remote-cpu,
// less the distance of its lowest and highest. nullopt: it has no runs with an AUC.
std::optional<double> TargetAuc(const std::vector<ArmRuns>& arms);

// As the command prints it: a line for each arm and budget, with medians over the seeds, then the
// training thread's time by stage.
std::string RenderArms(const std::vector<ArmRuns>& arms, std::optional<double> target_auc);
// A line for each run, and one for each evaluation of each run.
std::string ArmsCsv(const std::vector<ArmRuns>& arms, std::optional<double> target_auc);
std::string CurvesCsv(const std::vector<ArmRuns>& arms);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_ARMS_H_
