#include "common/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/listed_file.h"

namespace thermocline {
namespace {

std::string ManifestPath(const std::string& folder) {
  return absl::StrCat(folder, "/", kManifestName);
}

// The base of the generation as long as it has made no checkpoint: the next generation would begin
// with it again.
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

std::function<uint64_t()> RandomNonces() {
  return [device = std::make_shared<std::random_device>()] {
    return uint64_t{(*device)()} << 32 | (*device)();
  };
}

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

absl::Status CheckpointStore::Open(JobState state, uint64_t after) {
  std::vector<CheckpointId> existing;
  if (!history_->is_open()) {
    // Checkpoints of earlier programs, which wrote no HISTORY.
    ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, List());
    for (const ListedCheckpoint& listed : list) existing.push_back(listed.id);
  }
  // A launcher that died may have left the manifest unsynced.
  if (!state.base_checkpoint().empty()) {
    RETURN_IF_ERROR(disk_->SyncDirectory(PathOf(state.base_checkpoint())));
  }
  RETURN_IF_ERROR(history_->Open(state, after, existing));
  // It says less than HISTORY by now.
  const absl::Status removed = disk_->Remove(PathOf(kJobStateName));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::Status CheckpointStore::Commit(const CheckpointManifest& manifest, bool* may_exist) {
  const absl::Status committed = CommitChecked(manifest, may_exist);
  // Servers remove the files of a checkpoint that is called off.
  if (!committed.ok()) checked_->Forget(manifest);
  return committed;
}

absl::Status CheckpointStore::CommitChecked(const CheckpointManifest& manifest, bool* may_exist) {
  RETURN_IF_ERROR(checked_->Check(disk_, directory_, manifest, [](const auto&) { return true; }));
  const CheckpointId id = IdOf(manifest);
  ASSIGN_OR_RETURN(const std::string path, PathOfManifest(id));
  const std::string folder = path.substr(0, path.rfind('/'));
  if (!history_->is_open()) RETURN_IF_ERROR(CheckIsNewest(path, id));
  // A server without rows has written nothing: the folder may be missing.
  RETURN_IF_ERROR(disk_->CreateDirectory(folder));
  RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
  const absl::Status written = WriteWholeFile(disk_, EncodeManifest(manifest), path);
  if (!history_->is_open() || (written.ok() && Counts(history_->known(), id))) {
    if (may_exist != nullptr) *may_exist = absl::IsUnavailable(written);
    return written;
  }
  // Without a record it does not count.
  RETURN_IF_ERROR(written);
  return history_->Commit(id, may_exist);
}

absl::Status CheckpointStore::End(const JobOutcome& outcome) {
  // No generation has begun: there is nothing to end.
  return history_->is_open() ? history_->End(outcome) : absl::OkStatus();
}
absl::Status CheckpointStore::Look() { return history_->Look(); }

absl::StatusOr<std::optional<HistoryRecord>> CheckpointStore::LastRecord() const {
  return history_->Last();
}

// The path of a manifest, written or not. Manifests of earlier programs stay where they are.
absl::StatusOr<std::string> CheckpointStore::PathOfManifest(const CheckpointId& id) const {
  const std::string old = ManifestPath(PathOf(OldCheckpointName(id)));
  const absl::Status opened = disk_->Open(old).status();
  if (!absl::IsNotFound(opened)) return opened.ok() ? absl::StatusOr<std::string>(old) : opened;
  const std::string folder = PathOf(CheckpointName(id.step));
  const std::string unnumbered = ManifestPath(folder);
  if (!history_->is_open()) return unnumbered;
  const auto there = ReadWholeFile(disk_, unnumbered);
  if (absl::IsUnavailable(there.status())) return there.status();
  if (there.ok() && ReadManifestId(*there) == id) return unnumbered;
  return absl::StrCat(folder, "/", ManifestName(id.generation));
}

// For a writer without a HISTORY: an error where a later generation has begun, which may make, or
// have made, a checkpoint of the same step.
absl::Status CheckpointStore::CheckIsNewest(const std::string& path, const CheckpointId& id) const {
  const auto is_over = [&](uint64_t generation, absl::string_view has) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", generation, has, "; this one is of generation ", id.generation));
  };
  const auto there = ReadWholeFile(disk_, path);
  if (absl::IsUnavailable(there.status())) return there.status();
  const std::optional<CheckpointId> made = there.ok() ? ReadManifestId(*there) : std::nullopt;
  if (made == id) return absl::OkStatus();  // Written again, perhaps in a later generation.
  if (made.has_value() && made->generation > id.generation) {
    return is_over(made->generation,
                   absl::StrCat(" has made the checkpoint ", CheckpointName(id.step)));
  }
  const auto state = ReadJobState();
  // A damaged state shows nothing.
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
    if (says.has_value()) folders.push_back({name, *says, {}});
  }
  return folders;
}

// A folder that another process removes meanwhile is left out.
absl::StatusOr<std::vector<CheckpointStore::Folder>> CheckpointStore::FoldersWithFiles() const {
  ASSIGN_OR_RETURN(std::vector<Folder> all, Folders());
  std::vector<Folder> folders;
  for (Folder& folder : all) {
    auto files = disk_->List(PathOf(folder.name));
    if (absl::IsNotFound(files.status())) continue;
    RETURN_IF_ERROR(files.status());
    folder.files = *std::move(files);
    folders.push_back(std::move(folder));
  }
  return folders;
}

// Whether a manifest counts; without a HISTORY all that are there do.
absl::StatusOr<std::function<bool(const CheckpointId&)>> CheckpointStore::Validity() const {
  std::optional<HistoryRecord> last;
  if (history_->is_open()) {
    last = history_->known();
  } else {
    ASSIGN_OR_RETURN(last, history_->Last());
  }
  if (!last.has_value()) return [](const CheckpointId&) { return true; };
  return [record = *std::move(last)](const CheckpointId& id) { return Counts(record, id); };
}

absl::StatusOr<std::vector<ListedCheckpoint>> CheckpointStore::List() const {
  // What counts is read first, so that the folders show all of it.
  ASSIGN_OR_RETURN(const auto counts, Validity());
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, FoldersWithFiles());
  return ListIn(folders, counts,
                [this](const CheckpointManifest& manifest) { return CheckFiles(manifest); });
}

absl::StatusOr<std::vector<ListedCheckpoint>> CheckpointStore::ListIn(
    const std::vector<Folder>& folders, const std::function<bool(const CheckpointId&)>& counts,
    CheckOfFiles check) const {
  std::vector<ListedCheckpoint> list;
  for (const Folder& folder : folders) {
    ASSIGN_OR_RETURN(std::optional<ListedCheckpoint> listed, ListOne(folder, counts, check));
    if (listed.has_value()) list.push_back(*std::move(listed));
  }
  std::sort(list.begin(), list.end(), [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return a.id == b.id ? a.name < b.name : IsOlder(a.id, b.id);
  });
  return list;
}

// The newest that counts of those in a folder, whose files are given; nullopt: none does.
absl::StatusOr<std::optional<ListedCheckpoint>> CheckpointStore::ListOne(
    const Folder& folder, const std::function<bool(const CheckpointId&)>& counts,
    CheckOfFiles check) const {
  std::optional<ListedCheckpoint> newest;
  for (const std::string& file : folder.files) {
    const std::optional<uint64_t> generation = GenerationOfManifest(file);
    if (!generation.has_value()) continue;
    ListedCheckpoint listed;
    listed.name = folder.name;
    listed.file = file;
    listed.id = {*generation, folder.says.step};
    auto manifest = LoadFile(folder.says, absl::StrCat(PathOf(folder.name), "/", file));
    if (absl::IsNotFound(manifest.status())) continue;
    listed.status = manifest.status();
    if (manifest.ok()) {
      listed.manifest = *std::move(manifest);
      listed.id = IdOf(listed.manifest);
    } else if (*generation == 0) {
      ASSIGN_OR_RETURN(listed.id.generation, GenerationOfDamaged(folder));
    }
    // A damaged manifest of an earlier program may be any checkpoint's.
    const bool is_certain = manifest.ok() || *generation != 0;
    if (is_certain && !counts(listed.id)) continue;
    if (!newest.has_value() || IsOlder(newest->id, listed.id)) newest = std::move(listed);
  }
  if (newest.has_value() && newest->status.ok()) newest->status = check(newest->manifest);
  return newest;
}

// The generation of a folder whose manifest can't be read.
absl::StatusOr<uint64_t> CheckpointStore::GenerationOfDamaged(const Folder& folder) const {
  if (folder.says.generation.has_value()) return *folder.says.generation;
  const auto bytes = ReadWholeFile(disk_, ManifestPath(PathOf(folder.name)));
  const std::optional<CheckpointId> id = bytes.ok() ? ReadManifestId(*bytes) : std::nullopt;
  if (id.has_value() && id->step == folder.says.step) return id->generation;
  std::optional<uint64_t> newest;
  for (const std::string& file : folder.files) {
    newest = std::max(newest, GenerationOfFile(folder.says, file));  // nullopt: the least.
  }
  if (newest.has_value()) return *newest;
  return NewestGeneration();
}

absl::StatusOr<uint64_t> CheckpointStore::NewestGeneration() const {
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, FoldersWithFiles());
  uint64_t newest = 0;
  for (const Folder& folder : folders) {
    newest = std::max(newest, folder.says.generation.value_or(0));
    for (const std::string& file : folder.files) {
      newest = std::max(newest, GenerationOfFile(folder.says, file).value_or(0));
      newest = std::max(newest, GenerationOfManifest(file).value_or(0));
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
  const std::string folder = PathOf(name);
  if (generation == 0) {
    // Each server asks so for each file that it is about to write: the whole HISTORY is not listed
    // for a folder without a manifest.
    const auto files = disk_->List(folder);
    const bool has_manifest =
        files.ok() && std::any_of(files->begin(), files->end(), [](auto& file) {
          return GenerationOfManifest(file).has_value();
        });
    if (!files.ok() && !absl::IsNotFound(files.status())) return files.status();
    std::optional<ListedCheckpoint> listed;
    if (has_manifest) {
      ASSIGN_OR_RETURN(const auto counts, Validity());
      ASSIGN_OR_RETURN(listed, ListOne({std::string(name), *says, *files}, counts,
                                       [](const auto&) { return absl::OkStatus(); }));
    }
    if (!listed.has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no checkpoint in '", folder, "'"));
    }
    return LoadFile(*says, absl::StrCat(folder, "/", listed->file));
  }
  auto manifest = LoadFile(*says, absl::StrCat(folder, "/", ManifestName(generation)));
  if (!absl::IsNotFound(manifest.status())) return manifest;
  manifest = LoadFile(*says, ManifestPath(folder));
  if (manifest.ok() && manifest->generation() != generation) {
    return absl::NotFoundError(absl::StrCat(
        "'", ManifestPath(folder), "' is of step ", manifest->step(), " of generation ",
        manifest->generation(), ": it has taken the place of generation ", generation, "'s"));
  }
  return manifest;
}

absl::StatusOr<CheckpointManifest> CheckpointStore::LoadFile(const CheckpointFolder& says,
                                                             const std::string& path) const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(disk_, path));
  ASSIGN_OR_RETURN(CheckpointManifest manifest, DecodeManifest(bytes, path));
  const CheckpointId id = IdOf(manifest);
  const uint64_t named = GenerationOfManifest(path.substr(path.rfind('/') + 1)).value_or(0);
  if (id.step != says.step || id.generation != says.generation.value_or(id.generation) ||
      (named != 0 && named != id.generation)) {
    return absl::DataLossError(absl::StrCat("'", path, "' is of step ", id.step.value(),
                                            " of generation ", id.generation));
  }
  return manifest;
}

absl::StatusOr<std::optional<JobState>> CheckpointStore::ReadJobState() const {
  ASSIGN_OR_RETURN(const std::optional<HistoryRecord> last, history_->Last());
  if (last.has_value()) {
    JobState state = last->state();
    return state;
  }
  const std::string path = PathOf(kJobStateName);
  const auto bytes = ReadWholeFile(disk_, path);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  RETURN_IF_ERROR(bytes.status());
  ASSIGN_OR_RETURN(JobState state, DecodeJobState(*bytes, path));
  return state;
}

// Removal
// ------------------------------------------------------------------------------------------------

// Decides which files a removal keeps, before anything is removed.
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

  FolderRemoval RemovalOf(const Folder& folder);

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
  std::set<std::string> whole_;                                   // Folders of kept checkpoints.
  std::set<std::string> needed_;                                  // Paths.
  std::optional<CheckpointId> newest_;                            // The newest whole checkpoint.
  const ListedCheckpoint* foreign_ = nullptr;  // The newest of another format version.
  std::string held_back_;
};

struct CheckpointStore::FolderRemoval {
  std::string name;
  std::vector<std::string> files;  // Files to remove, without the manifest.
  std::string manifest;            // The manifest to remove; "": none.
  CheckpointId id;                 // The manifest's.
  bool folder = false;             // Whether the folder is removed, too.
};

CheckpointStore::FolderRemoval CheckpointStore::Keeping::RemovalOf(const Folder& folder) {
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
  for (const std::string& file : folder.files) {
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
  ASSIGN_OR_RETURN(const auto counts, Validity());
  // Each folder is listed once. A file that appears later is none of this removal's business; one
  // that goes meanwhile has a server that was faster.
  ASSIGN_OR_RETURN(const std::vector<Folder> folders, FoldersWithFiles());
  std::set<std::string> shown;  // The paths of all files, below the directory.
  for (const Folder& folder : folders) {
    for (const std::string& file : folder.files) {
      shown.insert(absl::StrCat(folder.name, "/", file));
    }
  }
  const auto check = [&](const CheckpointManifest& manifest) {
    return checked_->Check(disk_, directory_, manifest,
                           [&](const std::string& path) { return shown.count(path) != 0; });
  };
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, ListIn(folders, counts, check));
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
  std::vector<FolderRemoval> removals;
  for (const Folder& folder : folders) removals.push_back(keeping.RemovalOf(folder));
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
