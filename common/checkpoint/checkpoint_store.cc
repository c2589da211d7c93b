#include "common/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/listed_file.h"

namespace thermocline {
namespace {

std::string ManifestPath(const std::string& folder) {
  return absl::StrCat(folder, "/", kManifestName);
}

// A generation may begin with a checkpoint older than the newest: its checkpoints count as newer
// than those it left behind, whatever their steps.
bool IsOlder(const CheckpointId& a, const CheckpointId& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

}  // namespace

absl::StatusOr<const ListedCheckpoint*> FindByName(const std::vector<ListedCheckpoint>& list,
                                                   const std::string& name) {
  const std::optional<Step> step = ParseShortName(name);
  std::vector<const ListedCheckpoint*> of_step;
  for (const ListedCheckpoint& listed : list) {
    if (listed.name == name) return &listed;
    if (step == listed.id.step) of_step.push_back(&listed);
  }
  if (of_step.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint '", name, "'"));
  }
  if (of_step.size() == 1) return of_step[0];
  std::string names;
  for (const ListedCheckpoint* listed : of_step) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", listed->name, " (generation ",
                    listed->id.generation, ")");
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' may be any of ", names));
}

std::string CheckpointStore::PathOf(absl::string_view name) const {
  return absl::StrCat(directory_, "/", name);
}

absl::Status CheckpointStore::Prepare() { return CreateDirectories(disk_, directory_); }

absl::Status CheckpointStore::Commit(const CheckpointManifest& manifest) {
  RETURN_IF_ERROR(CheckFiles(manifest));
  const CheckpointId id = IdOf(manifest);
  ASSIGN_OR_RETURN(const std::string name, FolderOf(id));
  RETURN_IF_ERROR(CheckIsNewest(name, id));
  // A server without rows has written nothing: the folder may be missing.
  RETURN_IF_ERROR(disk_->CreateDirectory(PathOf(name)));
  RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
  return WriteWholeFile(disk_, EncodeManifest(manifest), ManifestPath(PathOf(name)));
}

// The folder in which it lies, or which it will get.
absl::StatusOr<std::string> CheckpointStore::FolderOf(const CheckpointId& id) const {
  std::string old_name = OldCheckpointName(id);
  const absl::Status old = disk_->Open(ManifestPath(PathOf(old_name))).status();
  if (old.ok()) return old_name;
  if (!absl::IsNotFound(old)) return old;
  return CheckpointName(id.step);
}

// An error where a later generation has begun, which may make, or have made, a checkpoint of the
// same step.
absl::Status CheckpointStore::CheckIsNewest(const std::string& name, const CheckpointId& id) const {
  const auto is_over = [&](uint64_t generation, absl::string_view has) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", generation, has, "; this one is of generation ", id.generation));
  };
  const auto there = ReadWholeFile(disk_, ManifestPath(PathOf(name)));
  if (absl::IsUnavailable(there.status())) return there.status();
  const std::optional<CheckpointId> made = there.ok() ? ReadManifestId(*there) : std::nullopt;
  if (made == id) return absl::OkStatus();  // Written again, perhaps in a later generation.
  if (made.has_value() && made->generation > id.generation) {
    return is_over(made->generation, absl::StrCat(" has made the checkpoint ", name));
  }
  const auto state = ReadJobState();
  // A damaged JOB_STATE shows nothing.
  if (absl::IsDataLoss(state.status())) return absl::OkStatus();
  RETURN_IF_ERROR(state.status());
  if (!state->has_value() || (*state)->generation() <= id.generation) return absl::OkStatus();
  return is_over((*state)->generation(), " has begun");
}

absl::Status CheckpointStore::CheckFiles(const CheckpointManifest& manifest) const {
  for (const CheckpointShard& shard : manifest.shards()) {
    for (const CheckpointFile& file : shard.files()) {
      RETURN_IF_ERROR(OpenListedFile(disk_, PathOf(file.path()), file).status());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::CheckBytes(const CheckpointManifest& manifest, ByteScan* scan) const {
  RETURN_IF_ERROR(CheckFiles(manifest));
  std::vector<const CheckpointFile*> unread;
  uint64_t done = 0, total = 0;
  for (const CheckpointShard& shard : manifest.shards()) {
    for (const CheckpointFile& file : shard.files()) {
      const auto known = scan->known.find(file.path());
      if (known != scan->known.end()) {
        RETURN_IF_ERROR(known->second);
        continue;
      }
      unread.push_back(&file);
      total += file.bytes();
    }
  }
  absl::Status stopped;
  const auto on_read = [&](uint64_t bytes) {
    done += bytes;
    if (scan->on_progress) stopped = scan->on_progress(done, total);
    return stopped;
  };
  for (const CheckpointFile* file : unread) {
    const absl::Status found = CheckListedBytes(disk_, PathOf(file->path()), *file, on_read);
    RETURN_IF_ERROR(stopped);  // The error of on_progress says nothing about the file.
    scan->known[file->path()] = found;
    RETURN_IF_ERROR(found);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointStore::Folder>> CheckpointStore::Folders() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(directory_));
  std::vector<Folder> folders;
  for (const std::string& name : names) {
    const auto says = ParseCheckpointName(name);
    if (says.has_value()) folders.push_back({name, *says});
  }
  return folders;
}

absl::StatusOr<std::vector<ListedCheckpoint>> CheckpointStore::List() const {
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders());
  std::vector<ListedCheckpoint> list;
  for (const Folder& folder : folders) {
    ListedCheckpoint listed;
    listed.name = folder.name;
    auto manifest = Load(folder.name);
    if (absl::IsNotFound(manifest.status())) continue;
    listed.status = manifest.status();
    if (manifest.ok()) {
      listed.manifest = *std::move(manifest);
      listed.id = IdOf(listed.manifest);
      listed.status = CheckFiles(listed.manifest);
    } else {
      listed.id.step = folder.says.step;
      ASSIGN_OR_RETURN(listed.id.generation, GenerationOfDamaged(folder));
    }
    list.push_back(std::move(listed));
  }
  std::sort(list.begin(), list.end(), [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return a.id == b.id ? a.name < b.name : IsOlder(a.id, b.id);
  });
  return list;
}

// Of a folder whose manifest can't be read.
absl::StatusOr<uint64_t> CheckpointStore::GenerationOfDamaged(const Folder& folder) const {
  if (folder.says.generation.has_value()) return *folder.says.generation;
  const auto bytes = ReadWholeFile(disk_, ManifestPath(PathOf(folder.name)));
  const std::optional<CheckpointId> id = bytes.ok() ? ReadManifestId(*bytes) : std::nullopt;
  if (id.has_value() && id->step == folder.says.step) return id->generation;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, disk_->List(PathOf(folder.name)));
  std::optional<uint64_t> newest;
  for (const std::string& file : files) {
    newest = std::max(newest, GenerationOfFile(folder.says, file));  // nullopt: the least.
  }
  if (newest.has_value()) return *newest;
  return NewestGeneration();
}

absl::StatusOr<uint64_t> CheckpointStore::NewestGeneration() const {
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders());
  uint64_t newest = 0;
  for (const Folder& folder : folders) {
    newest = std::max(newest, folder.says.generation.value_or(0));
    const auto files = disk_->List(PathOf(folder.name));
    if (absl::IsNotFound(files.status())) continue;
    RETURN_IF_ERROR(files.status());
    for (const std::string& file : *files) {
      newest = std::max(newest, GenerationOfFile(folder.says, file).value_or(0));
    }
    // A checkpoint without rows of its own.
    const auto bytes = ReadWholeFile(disk_, ManifestPath(PathOf(folder.name)));
    const std::optional<CheckpointId> id = bytes.ok() ? ReadManifestId(*bytes) : std::nullopt;
    if (id.has_value()) newest = std::max(newest, id->generation);
  }
  return newest;
}

absl::StatusOr<std::optional<CheckpointManifest>> CheckpointStore::Newest() const {
  ASSIGN_OR_RETURN(std::vector<ListedCheckpoint> list, List());
  if (list.empty()) return std::nullopt;
  RETURN_IF_ERROR(list.back().status);
  return std::move(list.back().manifest);
}

absl::StatusOr<CheckpointManifest> CheckpointStore::Load(absl::string_view name,
                                                         uint64_t generation) const {
  const auto says = ParseCheckpointName(name);
  if (!says.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no checkpoint's name"));
  }
  const std::string path = ManifestPath(PathOf(name));
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(disk_, path));
  ASSIGN_OR_RETURN(CheckpointManifest manifest, DecodeManifest(bytes, path));
  const CheckpointId id = IdOf(manifest);
  const auto is_of = [&](absl::string_view what) {
    return absl::StrCat("'", path, "' is of step ", id.step.value(), " of generation ",
                        id.generation, what);
  };
  if (id.step != says->step || id.generation != says->generation.value_or(id.generation)) {
    return absl::DataLossError(is_of(""));
  }
  if (generation != 0 && id.generation != generation) {
    return absl::NotFoundError(
        is_of(absl::StrCat(": it has taken the place of generation ", generation, "'s")));
  }
  return manifest;
}

absl::StatusOr<std::optional<JobState>> CheckpointStore::ReadJobState() const {
  const std::string path = PathOf(kJobStateName);
  const auto bytes = ReadWholeFile(disk_, path);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  RETURN_IF_ERROR(bytes.status());
  ASSIGN_OR_RETURN(JobState state, DecodeJobState(*bytes, path));
  return state;
}

absl::Status CheckpointStore::WriteJobState(JobState state) {
  state.set_format_version(kCheckpointFormatVersion);
  if (!state.base_checkpoint().empty()) {
    RETURN_IF_ERROR(disk_->SyncDirectory(PathOf(state.base_checkpoint())));
  }
  return WriteWholeFile(disk_, EncodeJobState(state), PathOf(kJobStateName));
}

// Removal
// ------------------------------------------------------------------------------------------------

// Which files a removal keeps: decided before anything is removed.
class CheckpointStore::Keeping {
 public:
  // `list` outlives this.
  Keeping(const std::vector<ListedCheckpoint>& list, uint32_t keep,
          const std::vector<CheckpointId>& in_progress, const std::optional<CheckpointId>& kept)
      : in_progress_(in_progress) {
    for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
      with_manifest_[listed->name] = &*listed;
      if (!listed->status.ok()) {
        if (foreign_ == nullptr && absl::IsFailedPrecondition(listed->status)) foreign_ = &*listed;
        continue;
      }
      if (!newest_.has_value()) newest_ = listed->id;
      if (keep == 0 && !(kept == listed->id)) continue;
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
    // A checkpoint after the newest whole one may be being written.
    if (IsOlder(*newest_, id) || Contains(id)) return true;
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
  bool manifest = false;
  bool folder = false;  // Goes, too.
};

CheckpointStore::FolderRemoval CheckpointStore::Keeping::Judge(
    const Folder& folder, const std::vector<std::string>& files) {
  FolderRemoval removal;
  removal.name = folder.name;
  const auto found = with_manifest_.find(folder.name);
  const ListedCheckpoint* const there = found == with_manifest_.end() ? nullptr : found->second;
  const bool is_kept = whole_.count(folder.name) != 0;
  if (there != nullptr && !there->status.ok()) return removal;  // Kept for the user to inspect.
  removal.manifest = there != nullptr && !is_kept && !MustStay(there->id);
  const bool manifest_stays = there != nullptr && !removal.manifest;
  size_t staying = manifest_stays ? 1 : 0;
  for (const std::string& file : files) {
    if (file == kManifestName) continue;
    // A file without a generation is not a server's.
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
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, List());
  for (const ListedCheckpoint& listed : list) {
    if (absl::IsUnavailable(listed.status)) return listed.status;
  }
  Removal removal;
  Keeping keeping(list, keep, in_progress, kept);
  if (!keeping.has_newest()) return removal;
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders());
  std::vector<FolderRemoval> removals;
  for (const Folder& folder : folders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, disk_->List(PathOf(folder.name)));
    removals.push_back(keeping.Judge(folder, files));
  }
  removal.held_back = keeping.held_back();
  // Manifests go first, so that none outlives its own files or those of an older checkpoint. The
  // sync also covers removals and replacements by a launcher that died before its sync, which a
  // crash could undo.
  for (const FolderRemoval& each : removals) {
    if (each.manifest) {
      RETURN_IF_ERROR(disk_->Remove(ManifestPath(PathOf(each.name))));
      ++removal.files;
    }
    RETURN_IF_ERROR(disk_->SyncDirectory(PathOf(each.name)));
  }
  for (const FolderRemoval& each : removals) RETURN_IF_ERROR(RemoveFiles(each, &removal.files));
  return removal;
}

absl::Status CheckpointStore::RemoveFiles(const FolderRemoval& removal, uint64_t* removed) {
  for (const std::string& file : removal.files) {
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
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders());
  for (const Folder& folder : folders) {
    const absl::Status status = disk_->RemoveDirectory(PathOf(folder.name));
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
  }
  return absl::OkStatus();
}

}  // namespace thermocline
