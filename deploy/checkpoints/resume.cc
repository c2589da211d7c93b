#include "deploy/checkpoints/resume.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "deploy/checkpoints/checkpoint_match.h"

namespace thermocline {
namespace {

// How many older checkpoints are offered.
constexpr size_t kMostNamed = 5;

using Checkpoints = std::vector<ListedCheckpoint>;

absl::StatusOr<Checkpoints> ListAll(const CheckpointStore& store) {
  absl::StatusOr<Checkpoints> list = store.List();
  if (absl::IsNotFound(list.status())) return Checkpoints();
  return list;
}

// The last checkpoint of the list that `fits`, whole or not.
template <typename Fits>
const ListedCheckpoint* Last(const Checkpoints& list, Fits fits) {
  const auto found = std::find_if(list.rbegin(), list.rend(), fits);
  return found == list.rend() ? nullptr : &*found;
}

// The whole checkpoints that the user may choose instead of `name`, newest first. Reads every byte,
// since an increment may need the very file that is damaged.
std::vector<std::string> WholeBut(const CheckpointStore& store, const Checkpoints& list,
                                  const std::string& name) {
  std::vector<std::string> names;
  ByteScan scan;
  for (auto listed = list.rbegin(); listed != list.rend() && names.size() < kMostNamed; ++listed) {
    if (!listed->status.ok() || listed->name == name) continue;
    if (store.CheckBytes(listed->manifest, &scan).ok()) names.push_back(listed->name);
  }
  return names;
}

std::string Instead(const CheckpointStore& store, const Checkpoints& list,
                    const std::string& name) {
  const std::vector<std::string> names = WholeBut(store, list, name);
  if (names.empty()) return "no other checkpoint is whole";
  return absl::StrCat("choose another with --resume-from; whole, by every byte: ",
                      absl::StrJoin(names, ", "));
}

// The user has removed the base of the last generation. Only earlier checkpoints of the base's own
// generation are certain to lie before it: the job may have gone back behind the last ones of an
// earlier generation.
absl::StatusOr<const ListedCheckpoint*> InPlaceOf(const CheckpointStore& store,
                                                  const Checkpoints& list, const JobState& state,
                                                  std::vector<std::string>* notices) {
  const std::string& base = state.base_checkpoint();
  const auto folder = ParseCheckpointName(base);
  if (!folder.has_value()) {
    return absl::DataLossError(absl::StrCat("'", base, "' is no checkpoint's name"));
  }
  const uint64_t generation = folder->generation.value_or(state.base_generation());
  ByteScan scan;
  const ListedCheckpoint* before = Last(list, [&](const ListedCheckpoint& listed) {
    return listed.status.ok() && listed.id.generation == generation &&
           listed.id.step < folder->step && store.CheckBytes(listed.manifest, &scan).ok();
  });
  const std::string gone =
      absl::StrCat("checkpoint ", base, ", with which the last generation began, is gone");
  if (before == nullptr) {
    return absl::DataLossError(absl::StrCat(gone, "; ", Instead(store, list, base)));
  }
  notices->push_back(absl::StrCat(gone, "; going on with ", before->name,
                                  ", the newest whole one that its generation made before"));
  return before;
}

// The checkpoint that the next generation begins with; null: none.
absl::StatusOr<const ListedCheckpoint*> Choose(const CheckpointStore& store,
                                               const Checkpoints& list,
                                               const std::optional<JobState>& state,
                                               const std::string& name,
                                               std::vector<std::string>* notices) {
  if (!name.empty()) return FindByName(list, name);
  if (!state.has_value()) return list.empty() ? nullptr : &list.back();
  const ListedCheckpoint* newest = Last(list, [&](const ListedCheckpoint& listed) {
    return listed.id.generation == state->generation();
  });
  if (newest != nullptr || state->base_checkpoint().empty()) return newest;
  const ListedCheckpoint* base = Last(list, [&](const ListedCheckpoint& listed) {
    const bool is_other = listed.status.ok() && state->base_generation() != 0 &&
                          listed.id.generation != state->base_generation();
    return listed.name == state->base_checkpoint() && !is_other;
  });
  if (base != nullptr) return base;
  return InPlaceOf(store, list, *state, notices);
}

absl::Status CheckJobId(const std::string& here, const std::string& there,
                        const std::string& whose) {
  if (there == here) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the job is '", here, "', ", whose, " is of job '", there, "'"));
}

}  // namespace

absl::StatusOr<ResumePoint> FindNextGeneration(const CheckpointStore& store,
                                               const std::string& job_id, const std::string& name) {
  const auto last = store.LastRecord();
  if (absl::IsDataLoss(last.status())) {
    return absl::DataLossError(absl::StrCat(
        last.status().message(), "; remove the folder ", kHistoryName,
        ", and --resume goes on with the newest checkpoint that any controller has written"));
  }
  RETURN_IF_ERROR(last.status());
  const auto read = store.ReadJobState();
  if (absl::IsDataLoss(read.status())) {
    return absl::DataLossError(
        absl::StrCat(read.status().message(),
                     "; remove it, and --resume goes on with the newest checkpoint there is"));
  }
  RETURN_IF_ERROR(read.status());
  const std::optional<JobState>& state = *read;
  ASSIGN_OR_RETURN(const Checkpoints list, ListAll(store));
  if (!state.has_value() && list.empty()) {
    return absl::NotFoundError(absl::StrCat("nothing to resume: ", store.directory(),
                                            " holds no checkpoint and no ", kHistoryName));
  }
  if (state.has_value()) {
    RETURN_IF_ERROR(
        CheckJobId(job_id, state->job_id(), last->has_value() ? kHistoryName : kJobStateName));
  }
  ResumePoint point;
  if (last->has_value()) point.start.history = (*last)->number();
  if (state.has_value()) point.spent = state->spent();
  GenerationStart& start = point.start;
  const absl::StatusOr<uint64_t> newest = store.NewestGeneration();
  if (!newest.ok() && !absl::IsNotFound(newest.status())) return newest.status();
  start.generation = 1 + std::max(newest.value_or(0), state.has_value() ? state->generation() : 0);
  ASSIGN_OR_RETURN(const ListedCheckpoint* chosen,
                   Choose(store, list, state, name, &point.notices));
  if (chosen == nullptr) return point;
  if (!chosen->status.ok()) {
    return absl::Status(chosen->status.code(),
                        absl::StrCat("checkpoint ", chosen->name, ": ", chosen->status.message(),
                                     "; ", Instead(store, list, chosen->name)));
  }
  RETURN_IF_ERROR(CheckJobId(job_id, chosen->manifest.job_id(), "the checkpoint"));
  start.base = chosen->name;
  start.base_step = chosen->id.step;
  start.base_generation = chosen->id.generation;
  start.base_samples = chosen->manifest.samples();
  point.base = chosen->manifest;
  return point;
}

absl::StatusOr<ResumePoint> FindResumePoint(const CheckpointStore& store, const Job& job,
                                            const std::string& build, const std::string& name) {
  ASSIGN_OR_RETURN(ResumePoint point, FindNextGeneration(store, job.name(), name));
  if (!point.base.has_value()) return point;
  RETURN_IF_ERROR(CheckModel(job, *point.base));
  RETURN_IF_ERROR(CheckData(job, *point.base));
  std::string origin = DescribeOrigin(job, build, point.start.base, *point.base);
  if (!origin.empty()) point.notices.push_back(std::move(origin));
  return point;
}

std::optional<std::vector<std::string>> InsteadOfDamagedBase(const CheckpointStore& store) {
  const auto state = store.ReadJobState();
  const auto list = ListAll(store);
  if (!state.ok() || !list.ok() || !state->has_value() || (*state)->base_checkpoint().empty()) {
    return std::nullopt;
  }
  const auto is_of_last_generation = [&](const ListedCheckpoint& listed) {
    return listed.id.generation == (*state)->generation();
  };
  if (Last(*list, is_of_last_generation) != nullptr) return std::nullopt;
  return WholeBut(store, *list, (*state)->base_checkpoint());
}

absl::Status CheckResumable(const CheckpointStore& store) {
  ASSIGN_OR_RETURN(const Checkpoints list, ListAll(store));
  const auto state = store.ReadJobState();
  // If the state can't be read, FindNextGeneration returns the error, whatever the job.
  const bool is_known = state.ok() && state->has_value();
  const std::string job_id = is_known       ? (*state)->job_id()
                             : list.empty() ? ""
                                            : list.back().manifest.job_id();
  return FindNextGeneration(store, job_id, "").status();
}

absl::Status CheckInitIsThere(Disk* disk, const InitCheckpoint& init) {
  const absl::Status there =
      CheckpointStore(disk, init.directory()).Load(init.name(), init.generation()).status();
  if (!absl::IsNotFound(there)) return there;
  return absl::NotFoundError(absl::StrCat(
      "checkpoint ", init.name(), " in ", init.directory(),
      ", which this job begins with (init_from), is gone, and the job has no checkpoint of its own "
      "yet: ",
      there.message()));
}

absl::Status CheckUnused(const CheckpointStore& store) {
  ASSIGN_OR_RETURN(const std::optional<JobState> state, store.ReadJobState());
  const absl::StatusOr<Checkpoints> list = store.List();
  const bool has_checkpoints = list.ok() && !list->empty();
  if (!state.has_value() && !has_checkpoints) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("checkpoint.directory ", store.directory(), " holds the checkpoints of ",
                   state.has_value() ? absl::StrCat("job '", state->job_id(), "'") : "another job",
                   "; go on with them (--resume), or name another folder"));
}

}  // namespace thermocline
