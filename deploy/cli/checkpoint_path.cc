#include "deploy/cli/checkpoint_path.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

absl::StatusOr<ListedCheckpoint> NewestWhole(const CheckpointStore& store, ByteScan* scan,
                                             std::vector<std::string>* notices) {
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, store.List());
  std::string passed_over;
  for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
    absl::Status status = listed->status;
    if (status.ok() && scan != nullptr) status = store.CheckBytes(listed->manifest, scan);
    if (status.ok()) return *listed;
    if (absl::IsCancelled(status)) return status;
    notices->push_back(
        absl::StrCat("checkpoint ", listed->name, " is passed over: ", status.message()));
    absl::StrAppend(&passed_over, "; ", listed->name, ": ", status.message());
  }
  return absl::NotFoundError(
      absl::StrCat("there is no whole checkpoint in ", store.directory(), passed_over));
}

// The best checkpoint in a checkpoint directory. Errors: as ResolveCheckpointPath.
absl::StatusOr<CheckpointPath> BestCheckpoint(const std::string& directory, ByteScan* scan,
                                              std::vector<std::string>* notices) {
  PosixDisk disk;
  ASSIGN_OR_RETURN(const ListedCheckpoint newest,
                   NewestWhole(CheckpointStore(&disk, directory), scan, notices));
  const EvaluationState& known = newest.manifest.evaluations();
  const std::string& best = known.best_checkpoint();
  if (best.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no checkpoint in ", directory, " is kept as the best"));
  }
  // Another generation's may have its name by now.
  const auto there = CheckpointStore(&disk, directory).Load(best, known.best_generation());
  if (!absl::IsNotFound(there.status())) return CheckpointPath{directory, best};
  return absl::NotFoundError(
      absl::StrCat("the best checkpoint is gone: ", there.status().message()));
}

}  // namespace

std::string DescribeNewest(const ListedCheckpoint& newest) {
  const std::string& best = newest.manifest.evaluations().best_checkpoint();
  std::string text = absl::StrCat("checkpoint ", newest.name, ", the last");
  if (best == newest.name) return text + " and the best";
  if (!best.empty()) absl::StrAppend(&text, "; the best is ", best, " (RUN_DIR/best)");
  return text;
}

absl::StatusOr<ListedCheckpoint> LoadWholeCheckpoint(const CheckpointStore& store,
                                                     const std::string& name, ByteScan* scan,
                                                     std::vector<std::string>* notices) {
  if (name.empty()) {
    ASSIGN_OR_RETURN(ListedCheckpoint newest, NewestWhole(store, scan, notices));
    notices->push_back(DescribeNewest(newest));
    return newest;
  }
  ListedCheckpoint named;
  named.name = name;
  ASSIGN_OR_RETURN(named.manifest, store.Load(name));
  const absl::Status status =
      scan == nullptr ? store.CheckFiles(named.manifest) : store.CheckBytes(named.manifest, scan);
  if (status.ok()) return named;
  if (absl::IsCancelled(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat("checkpoint ", name, " can't be used: ", status.message()));
}

absl::StatusOr<CheckpointPath> ResolveCheckpointPath(std::string path, ByteScan* scan,
                                                     std::vector<std::string>* notices) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::filesystem::path as_path(path);
  if (!std::filesystem::is_directory(path)) {
    const std::string name = as_path.filename().string();
    if (name != "best" && !ParseShortName(name).has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no folder '", path, "'"));
    }
    const std::string parent = as_path.parent_path().string();
    ASSIGN_OR_RETURN(const CheckpointPath of,
                     ResolveCheckpointPath(parent.empty() ? "." : parent, scan, notices));
    if (name == "best") return BestCheckpoint(of.directory, scan, notices);
    PosixDisk disk;
    ASSIGN_OR_RETURN(const auto list, CheckpointStore(&disk, of.directory).List());
    const auto found = FindByName(list, name);
    if (absl::IsNotFound(found.status())) {
      return absl::NotFoundError(absl::StrCat("there is no checkpoint '", path, "'"));
    }
    RETURN_IF_ERROR(found.status());
    return CheckpointPath{of.directory, (*found)->name};
  }
  if (ParseCheckpointName(as_path.filename().string()).has_value()) {
    const std::string directory = as_path.parent_path().string();
    return CheckpointPath{directory.empty() ? "." : directory, as_path.filename().string()};
  }
  const std::string job_file = path + "/job.textproto";
  if (!std::filesystem::exists(job_file)) return CheckpointPath{path, ""};
  ASSIGN_OR_RETURN(const Job job, LoadJob(job_file, {}));
  std::string directory = job.checkpoint().directory();
  if (directory.empty()) directory = path + "/checkpoints";
  if (!WritesCheckpoints(job) && !std::filesystem::is_directory(directory)) {
    return absl::NotFoundError(
        absl::StrCat("the job in '", path, "' writes no checkpoints (checkpoint.none)"));
  }
  return CheckpointPath{directory, ""};
}

}  // namespace thermocline
