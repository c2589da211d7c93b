#include "deploy/bench/arms.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/model_memory.h"
#include "common/job/resolved_job.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

struct NamedArm {
  Arm arm;
  const char* name;
};
constexpr std::array<NamedArm, 6> kArms = {{{Arm::kRemoteCpu, "remote-cpu"},
                                            {Arm::kRemoteGpu, "remote-gpu"},
                                            {Arm::kFae, "fae"},
                                            {Arm::kFaeStatic, "fae-static"},
                                            {Arm::kCacheStatic, "cache-static"},
                                            {Arm::kCache, "cache"}}};

// What a worker's cache has for the rows of one batch of a table.
uint64_t BatchBytes(const Job& job, const JobTables& tables, size_t table) {
  uint64_t columns = 0;
  for (const FeatureSpec& feature : tables.features) {
    if (static_cast<size_t>(feature.table_index) == table) {
      columns += static_cast<uint64_t>(feature.columns);
    }
  }
  const uint64_t workers = std::max<uint64_t>(job.cluster().workers(), 1);
  const uint64_t rows = (job.train().batch_size() + workers - 1) / workers * columns;
  const TableLayout& layout = tables.sparse[table];
  if (workers > 1) return 3 * sizeof(float) * rows * static_cast<uint64_t>(layout.dim);
  return rows * sizeof(float) * static_cast<uint64_t>(DeviceRowFloats(layout.row_floats()));
}

}  // namespace

const char* ArmName(Arm arm) {
  return std::find_if(kArms.begin(), kArms.end(),
                      [arm](const NamedArm& named) { return named.arm == arm; })
      ->name;
}

std::vector<Arm> AllArms() {
  std::vector<Arm> arms;
  for (const NamedArm& named : kArms) arms.push_back(named.arm);
  return arms;
}

absl::StatusOr<std::vector<Arm>> ParseArms(absl::string_view text) {
  std::vector<Arm> arms;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto found = std::find_if(kArms.begin(), kArms.end(),
                                    [&](const NamedArm& named) { return name == named.name; });
    if (found == kArms.end()) {
      std::vector<std::string> names;
      for (const NamedArm& named : kArms) names.push_back(named.name);
      return absl::InvalidArgumentError(
          absl::StrCat("--arms: '", name, "' is no arm", DidYouMean(name, names)));
    }
    if (std::find(arms.begin(), arms.end(), found->arm) != arms.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--arms names ", name, " twice"));
    }
    arms.push_back(found->arm);
  }
  return arms;
}

absl::StatusOr<std::vector<uint64_t>> ParseBudgets(absl::string_view text) {
  std::vector<uint64_t> budgets;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::StatusOr<uint64_t> budget = ParseByteSize(part);
    if (!budget.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--budgets: '", part, "': ", budget.status().message()));
    }
    if (*budget == 0) return absl::InvalidArgumentError("--budgets: a budget of 0 holds no row");
    budgets.push_back(*budget);
  }
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  return budgets;
}

bool HoldsRows(Arm arm) { return arm != Arm::kRemoteCpu && arm != Arm::kRemoteGpu; }

uint64_t CacheBudget(const Job& job, uint64_t held_bytes) {
  const JobTables tables = ResolveTables(job);
  uint64_t budget = held_bytes;
  for (size_t t = 0; t < tables.sparse.size(); ++t) budget += BatchBytes(job, tables, t);
  return budget;
}

JobChange ChangeOf(Arm arm, const Job& job, uint64_t budget, const std::string& pack_directory) {
  const bool is_fae = arm == Arm::kFae || arm == Arm::kFaeStatic;
  const bool is_cache = arm == Arm::kCache || arm == Arm::kCacheStatic;
  JobChange change;
  if (job.has_cache() && !is_cache) change.clear.push_back("cache");
  if (job.has_fae() && !is_fae) change.clear.push_back("fae");
  const bool calibrates = is_fae || arm == Arm::kCacheStatic;
  if (job.has_calibration() && !calibrates) change.clear.push_back("calibration");
  if (arm == Arm::kRemoteCpu) change.set.push_back("device=CPU");
  if (arm == Arm::kRemoteGpu) change.set.push_back("device=CUDA");
  if (is_fae) change.set.push_back(absl::StrCat("fae.budget=", budget, "B"));
  if (arm == Arm::kFaeStatic) {
    change.set.push_back("fae.schedule.fixed=true");
    change.set.push_back("fae.schedule.rate=100");
    change.set.push_back("fae.schedule.max_rate=100");
  }
  if (is_cache) {
    change.set.push_back(absl::StrCat("cache.budget=", CacheBudget(job, budget), "B"));
    change.set.push_back(
        absl::StrCat("cache.policy=", arm == Arm::kCache ? "LOOKAHEAD" : "STATIC"));
  }
  if (calibrates) change.set.push_back("calibration.directory=" + pack_directory);
  return change;
}

JobChange CommonChange(const Job& job, int64_t steps, int64_t evaluations) {
  JobChange change;
  change.set.push_back("checkpoint.none=true");
  if (evaluations == 0) {
    if (job.has_evaluate()) change.clear.push_back("evaluate");
    return change;
  }
  if (!job.has_evaluate()) {
    const int64_t every = std::max<int64_t>(1, steps / evaluations);
    change.set.push_back(absl::StrCat("evaluate.every_steps=", every));
  }
  change.set.push_back("evaluate.patience=0");
  change.set.push_back("evaluate.keep_best=false");
  return change;
}

std::optional<double> TargetAuc(const std::vector<ArmRuns>& arms) {
  std::vector<double> aucs;
  for (const ArmRuns& arm : arms) {
    if (arm.arm != Arm::kRemoteCpu) continue;
    for (const RunFigures& run : arm.runs) {
      if (run.auc) aucs.push_back(*run.auc);
    }
  }
  const std::optional<Spread> spread = SpreadOf(aucs);
  if (!spread) return std::nullopt;
  return spread->low - (spread->high - spread->low);
}

}  // namespace thermocline
