// What of a directory of checkpoints is not needed any more, and its removal.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_store.h"

namespace thermocline {
namespace {

// What the generation has begun with, as long as it has made no checkpoint: it would begin with
// that again.
std::optional<CheckpointId> BaseInUse(const HistoryRecord& known) {
  const JobState& state = known.state();
  const auto folder = ParseCheckpointName(state.base_checkpoint());
  const bool has_own =
      std::any_of(known.committed().begin(), known.committed().end(),
                  [&](const CheckpointRef& ref) { return ref.generation() == state.generation(); });
  if (has_own || !folder.has_value()) return std::nullopt;
  return CheckpointId{folder->generation.value_or(state.base_generation()), folder->step};
}

// The checkpoints that count and are not in the list: the user has removed them, or the file system
// shows an old folder. What they need may be removed once they are retired. Errors: kUnavailable
// (one of them is in use)
absl::StatusOr<std::vector<CheckpointId>> Unseen(const HistoryRecord& known,
                                                 const std::vector<ListedCheckpoint>& list) {
  std::vector<CheckpointId> unseen;
  std::optional<CheckpointId> in_use = BaseInUse(known);
  for (const CheckpointRef& ref : known.committed()) {
    const CheckpointId id = {ref.generation(), Step(ref.step())};
    if (id.generation == known.state().generation()) in_use = id;  // The last one is.
    if (std::none_of(list.begin(), list.end(),
                     [&](const ListedCheckpoint& listed) { return listed.id == id; })) {
      unseen.push_back(id);
    }
  }
  for (const CheckpointId& id : unseen) {
    if (in_use == id) {
      return absl::UnavailableError(
          absl::StrCat("checkpoint ", CheckpointName(id.step), " counts, and is not seen"));
    }
  }
  return unseen;
}

}  // namespace

// Which files a removal keeps: decided before anything is removed.
class CheckpointStore::Keeping {
 public:
  // `list` outlives this.
  // `generation`: the writer's own.
  Keeping(const std::vector<ListedCheckpoint>& list, uint64_t generation, uint32_t keep,
          const std::vector<CheckpointId>& in_progress, const std::optional<CheckpointId>& kept,
          const std::optional<CheckpointId>& base)
      : generation_(generation), in_progress_(in_progress) {
    for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
      with_manifest_[listed->name] = &*listed;
      if (!listed->status.ok()) {
        if (foreign_ == nullptr && absl::IsFailedPrecondition(listed->status)) foreign_ = &*listed;
        continue;
      }
      if (!newest_.has_value()) newest_ = listed->id;
      if (keep == 0 && !(kept == listed->id) && !(base == listed->id)) continue;
      if (keep > 0) --keep;
      whole_.insert(listed->name);
      for (const CheckpointShard& shard : listed->manifest.shards()) {
        for (const CheckpointFile& file : shard.files()) needed_.insert(file.path());
      }
    }
  }

  bool has_newest() const { return newest_.has_value(); }
  // Why files stay that no checkpoint needs; "": none do.
  const std::string& held_back() const { return held_back_; }

  // `files`: all that lie in it.
  FolderRemoval Judge(const Folder& folder, const std::vector<std::string>& files);

 private:
  // Whether it must stay for another reason than that a checkpoint needs it: it may be being
  // written, or a checkpoint of another format version may need it.
  bool MustStay(const CheckpointId& id) {
    // A checkpoint after the newest whole one may be being written, and another controller's at any
    // time.
    if (IsOlder(*newest_, id) || id.generation > generation_ || Contains(id)) return true;
    // It is unknown which files a manifest of another version names, but it names none that came
    // later.
    if (foreign_ == nullptr || !IsOlder(id, foreign_->id)) return false;
    held_back_ = absl::StrCat("what is older than ", foreign_->name,
                              " stays, which may need it: ", foreign_->status.message());
    return true;
  }
  bool Contains(const CheckpointId& id) const {
    return std::find(in_progress_.begin(), in_progress_.end(), id) != in_progress_.end();
  }

  const uint64_t generation_;
  const std::vector<CheckpointId>& in_progress_;
  std::map<std::string, const ListedCheckpoint*> with_manifest_;  // By folder.
  std::set<std::string> whole_;                                   // Folders of kept ones.
  std::set<std::string> needed_;                                  // Paths
  std::optional<CheckpointId> newest_;                            // That is whole.
  const ListedCheckpoint* foreign_ = nullptr;  // The newest of another format version.
  std::string held_back_;
};

struct CheckpointStore::FolderRemoval {
  std::string name;
  std::vector<std::string> files;  // But for the manifest.
  std::string manifest;            // "": it stays, or there is none.
  CheckpointId id;                 // Of that.
  bool folder = false;             // Goes, too.
};

CheckpointStore::FolderRemoval CheckpointStore::Keeping::Judge(
    const Folder& folder, const std::vector<std::string>& files) {
  FolderRemoval removal;
  removal.name = folder.name;
  const auto found = with_manifest_.find(folder.name);
  const ListedCheckpoint* const there = found == with_manifest_.end() ? nullptr : found->second;
  const bool is_kept = whole_.count(folder.name) != 0;
  if (there != nullptr && !there->status.ok()) return removal;  // Kept for the user to inspect.
  if (there != nullptr && !is_kept && !MustStay(there->id)) {
    removal.manifest = there->file;
    removal.id = there->id;
  }
  const bool manifest_stays = there != nullptr && removal.manifest.empty();
  size_t staying = manifest_stays ? 1 : 0;
  for (const std::string& file : files) {
    if (there != nullptr && file == there->file) continue;
    // A manifest that does not count. A file without a generation is not a server's.
    const std::optional<uint64_t> manifest = GenerationOfManifest(file);
    if (manifest.has_value()) {
      const bool stays = MustStay({*manifest, folder.says.step});
      if (stays) ++staying;
      if (!stays) removal.files.push_back(file);
      continue;
    }
    const std::optional<uint64_t> generation = GenerationOfFile(folder.says, file);
    const CheckpointId id = {generation.value_or(0), folder.says.step};
    const bool goes_with_manifest = !generation.has_value() || (there && id == there->id);
    if (needed_.count(absl::StrCat(folder.name, "/", file)) != 0 ||
        (manifest_stays && goes_with_manifest) || MustStay(id)) {
      ++staying;
    } else {
      removal.files.push_back(file);
    }
  }
  // A server may have made this folder of a later step, and be about to write there.
  const CheckpointId last = {folder.says.generation.value_or(newest_->generation),
                             folder.says.step};
  removal.folder = staying == 0 && !MustStay(last);
  return removal;
}

absl::StatusOr<Removal> CheckpointStore::RemoveUnneeded(
    uint32_t keep, const std::vector<CheckpointId>& in_progress,
    const std::optional<CheckpointId>& kept) {
  CHECK_GE(keep, 1u);
  std::set<std::string> shown;  // By their folders.
  ASSIGN_OR_RETURN(std::vector<Folder> folders, Folders());
  for (const Folder& folder : folders) {
    const auto files = disk_->List(PathOf(folder.name));
    if (absl::IsNotFound(files.status())) continue;
    RETURN_IF_ERROR(files.status());
    for (const std::string& file : *files) shown.insert(absl::StrCat(folder.name, "/", file));
  }
  const auto check = [&](const CheckpointManifest& manifest) {
    return checked_->Check(disk_, directory_, manifest,
                           [&](const std::string& path) { return shown.count(path) != 0; });
  };
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, ListWith(check));
  for (const ListedCheckpoint& listed : list) {
    if (absl::IsUnavailable(listed.status)) return listed.status;
  }
  Removal removal;
  const uint64_t generation =
      history_->is_open() ? history_->known().state().generation() : UINT64_MAX;
  const std::optional<CheckpointId> base =
      history_->is_open() ? BaseInUse(history_->known()) : std::nullopt;
  Keeping keeping(list, generation, keep, in_progress, kept, base);
  if (!keeping.has_newest()) return removal;
  ASSIGN_OR_RETURN(folders, Folders());
  std::vector<FolderRemoval> removals;
  for (const Folder& folder : folders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, disk_->List(PathOf(folder.name)));
    removals.push_back(keeping.Judge(folder, files));
  }
  removal.held_back = keeping.held_back();
  RETURN_IF_ERROR(Retire(list, removals));
  // Manifests go first, so that none outlives its own files or those of an older checkpoint. The
  // sync also covers removals and replacements by a launcher that died before its sync, which a
  // crash could undo.
  for (const FolderRemoval& each : removals) {
    if (!each.manifest.empty()) {
      RETURN_IF_ERROR(disk_->Remove(absl::StrCat(PathOf(each.name), "/", each.manifest)));
      ++removal.files;
    }
    RETURN_IF_ERROR(disk_->SyncDirectory(PathOf(each.name)));
  }
  for (const FolderRemoval& each : removals) RETURN_IF_ERROR(RemoveFiles(each, &removal.files));
  return removal;
}

// From here on no generation begins with what goes.
absl::Status CheckpointStore::Retire(const std::vector<ListedCheckpoint>& list,
                                     const std::vector<FolderRemoval>& removals) {
  if (!history_->is_open()) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<CheckpointId> ids, Unseen(history_->known(), list));
  for (const FolderRemoval& each : removals) {
    if (!each.manifest.empty()) ids.push_back(each.id);
  }
  return ids.empty() ? absl::OkStatus() : history_->Retire(ids);
}

absl::Status CheckpointStore::RemoveFiles(const FolderRemoval& removal, uint64_t* removed) {
  for (const std::string& file : removal.files) {
    checked_->Forget(absl::StrCat(removal.name, "/", file));
    const absl::Status status = disk_->Remove(absl::StrCat(PathOf(removal.name), "/", file));
    if (absl::IsNotFound(status)) continue;  // Its server was faster.
    RETURN_IF_ERROR(status);
    ++*removed;
  }
  if (!removal.folder) return absl::OkStatus();
  const absl::Status status = disk_->RemoveDirectory(PathOf(removal.name));
  // A server that does not know yet that its cut was called off still writes into it: a later
  // removal takes it.
  return absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

absl::Status CheckpointStore::RemoveEmptyFolders() {
  RETURN_IF_ERROR(history_->Look());  // The servers of another controller may be about to write.
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders());
  for (const Folder& folder : folders) {
    const absl::Status status = disk_->RemoveDirectory(PathOf(folder.name));
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
  }
  return absl::OkStatus();
}

}  // namespace thermocline
