#include "deploy/controller/resume.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/job_tables.h"
#include "common/status_macros.h"
#include "common/table_spec.h"

namespace thermocline {
namespace {

constexpr char kWhatToDo[] =
    "; remove its folder to go on with the one before, or choose one with --resume-from";

absl::Status Differs(const std::string& what) { return absl::FailedPreconditionError(what); }

TableLayout WithoutBudget(TableLayout layout) {
  layout.memory_budget_bytes = 0;
  return layout;
}

const TableLayout* Find(const std::vector<TableLayout>& tables, const std::string& name) {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const TableLayout& table) { return table.name == name; });
  return found == tables.end() ? nullptr : &*found;
}

// The last checkpoint of the list that `fits`, whole or not.
template <typename Fits>
const ListedCheckpoint* Last(const std::vector<ListedCheckpoint>& list, Fits fits) {
  const auto found = std::find_if(list.rbegin(), list.rend(), fits);
  return found == list.rend() ? nullptr : &*found;
}

// What the epoch after begins with; null: nothing.
absl::StatusOr<const ListedCheckpoint*> Choose(const std::vector<ListedCheckpoint>& list,
                                               const std::optional<JobState>& state,
                                               const std::string& name) {
  const auto by_name = [&](const std::string& wanted) {
    return Last(list, [&](const ListedCheckpoint& listed) { return listed.name == wanted; });
  };
  if (!name.empty()) {
    const ListedCheckpoint* chosen = by_name(name);
    if (chosen == nullptr) {
      return absl::NotFoundError(absl::StrCat("there is no checkpoint '", name, "'"));
    }
    return chosen;
  }
  if (!state.has_value()) return list.empty() ? nullptr : &list.back();
  const ListedCheckpoint* newest =
      Last(list, [&](const ListedCheckpoint& listed) { return listed.id.epoch == state->epoch(); });
  if (newest != nullptr || state->base_checkpoint().empty()) return newest;
  const ListedCheckpoint* base = by_name(state->base_checkpoint());
  if (base == nullptr) {
    return absl::DataLossError(absl::StrCat("checkpoint ", state->base_checkpoint(),
                                            ", with which the last epoch began, is gone",
                                            "; choose one with --resume-from"));
  }
  return base;
}

// A step is a batch of the same samples only where batches are of the same size.
absl::Status CheckData(const Job& job, const CheckpointManifest& manifest) {
  if (manifest.job_id() != job.name()) {
    return Differs(absl::StrCat("the job is '", job.name(), "', the checkpoint is of job '",
                                manifest.job_id(), "'"));
  }
  const uint32_t before = manifest.job().train().batch_size();
  if (before == job.train().batch_size()) return absl::OkStatus();
  return Differs(absl::StrCat("train.batch_size is ", job.train().batch_size(),
                              ", and the checkpoint was made with ", before,
                              ": a step would be other samples"));
}

}  // namespace

absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest) {
  if (job.seed() != manifest.seed()) {
    return Differs(absl::StrCat("seed is ", job.seed(), ", and the checkpoint was made with ",
                                manifest.seed(), ": rows that it lacks would begin otherwise"));
  }
  const std::vector<TableLayout> here = ResolveTables(job).AllLayouts();
  const std::vector<TableLayout> there = TablesOf(manifest);
  for (const TableLayout& table : here) {
    if (Find(there, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has no table '", table.name, "'"));
  }
  for (const TableLayout& table : there) {
    if (Find(here, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has a table '", table.name, "', the job has none"));
  }
  for (const TableLayout& table : here) {
    const std::string difference =
        DescribeDifference(WithoutBudget(table), WithoutBudget(*Find(there, table.name)));
    if (!difference.empty()) return Differs(difference + ", in the checkpoint");
  }
  return absl::OkStatus();
}

absl::StatusOr<EpochStart> FindResumePoint(const CheckpointStore& store, const Job& job,
                                           const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<JobState> state, store.ReadJobState());
  absl::StatusOr<std::vector<ListedCheckpoint>> list = store.List();
  if (absl::IsNotFound(list.status())) list = std::vector<ListedCheckpoint>();
  RETURN_IF_ERROR(list.status());
  if (!state.has_value() && list->empty()) {
    return absl::NotFoundError(absl::StrCat("nothing to resume: ", store.directory(),
                                            " holds no checkpoint and no ", kJobStateName));
  }
  EpochStart start;
  start.epoch = state.has_value() ? state->epoch() : 0;
  for (const ListedCheckpoint& listed : *list) start.epoch = std::max(start.epoch, listed.id.epoch);
  ++start.epoch;
  ASSIGN_OR_RETURN(const ListedCheckpoint* chosen, Choose(*list, state, name));
  if (chosen == nullptr) return start;
  if (!chosen->status.ok()) {
    return absl::Status(chosen->status.code(), absl::StrCat("checkpoint ", chosen->name, ": ",
                                                            chosen->status.message(), kWhatToDo));
  }
  RETURN_IF_ERROR(CheckData(job, chosen->manifest));
  RETURN_IF_ERROR(CheckModel(job, chosen->manifest));
  start.base = chosen->name;
  start.base_step = chosen->id.step;
  start.base_samples = chosen->manifest.samples();
  return start;
}

absl::Status CheckUnused(const CheckpointStore& store) {
  ASSIGN_OR_RETURN(const std::optional<JobState> state, store.ReadJobState());
  const absl::StatusOr<std::vector<ListedCheckpoint>> list = store.List();
  const bool has_checkpoints = list.ok() && !list->empty();
  if (!state.has_value() && !has_checkpoints) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("checkpoint.directory ", store.directory(), " holds the checkpoints of ",
                   state.has_value() ? absl::StrCat("job '", state->job_id(), "'") : "another job",
                   "; go on with them (--resume), or name another folder"));
}

}  // namespace thermocline
