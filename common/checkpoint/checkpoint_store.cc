#include "common/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <memory>
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

CheckpointId IdOf(const CheckpointManifest& manifest) {
  return {manifest.generation(), Step(manifest.step())};
}

// A generation may begin with a checkpoint older than the newest: what it makes comes after what it
// left behind, whatever the steps.
bool IsOlder(const CheckpointId& a, const CheckpointId& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

}  // namespace

std::string CheckpointStore::PathOf(absl::string_view name) const {
  return absl::StrCat(directory_, "/", name);
}

absl::Status CheckpointStore::Prepare() { return CreateDirectories(disk_, directory_); }

absl::Status CheckpointStore::Commit(const CheckpointManifest& manifest) {
  RETURN_IF_ERROR(CheckFiles(manifest));
  const std::string folder = PathOf(CheckpointName(IdOf(manifest)));
  // A server without rows has written nothing: the folder may be missing.
  RETURN_IF_ERROR(disk_->CreateDirectory(folder));
  RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
  return WriteWholeFile(disk_, EncodeManifest(manifest), ManifestPath(folder));
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
    RETURN_IF_ERROR(stopped);  // It says nothing about the file.
    scan->known[file->path()] = found;
    RETURN_IF_ERROR(found);
  }
  return absl::OkStatus();
}

// Oldest first.
absl::StatusOr<std::vector<CheckpointId>> CheckpointStore::Folders() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(directory_));
  std::vector<CheckpointId> ids;
  for (const std::string& name : names) {
    const auto id = ParseCheckpointName(name);
    if (id.has_value()) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end(), IsOlder);
  return ids;
}

absl::StatusOr<std::vector<ListedCheckpoint>> CheckpointStore::List() const {
  ASSIGN_OR_RETURN(const std::vector<CheckpointId> folders, Folders());
  std::vector<ListedCheckpoint> list;
  for (const CheckpointId& id : folders) {
    ListedCheckpoint listed;
    listed.id = id;
    listed.name = CheckpointName(id);
    auto manifest = Load(listed.name);
    if (absl::IsNotFound(manifest.status())) continue;
    listed.status = manifest.status();
    if (manifest.ok()) {
      listed.manifest = *std::move(manifest);
      listed.status = CheckFiles(listed.manifest);
    }
    list.push_back(std::move(listed));
  }
  return list;
}

absl::StatusOr<std::optional<CheckpointManifest>> CheckpointStore::Newest() const {
  ASSIGN_OR_RETURN(std::vector<ListedCheckpoint> list, List());
  if (list.empty()) return std::nullopt;
  RETURN_IF_ERROR(list.back().status);
  return std::move(list.back().manifest);
}

absl::StatusOr<CheckpointManifest> CheckpointStore::Load(absl::string_view name) const {
  const auto id = ParseCheckpointName(name);
  if (!id.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no checkpoint's name"));
  }
  const std::string path = ManifestPath(PathOf(name));
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(disk_, path));
  ASSIGN_OR_RETURN(CheckpointManifest manifest, DecodeManifest(bytes, path));
  if (!(IdOf(manifest) == *id)) {
    return absl::DataLossError(absl::StrCat("'", path, "' is of ", CheckpointName(IdOf(manifest))));
  }
  return manifest;
}

absl::Status CheckpointStore::RemoveManifest(const std::string& name, uint64_t* removed) {
  const std::string folder = PathOf(name);
  const absl::Status status = disk_->Remove(ManifestPath(folder));
  if (status.ok()) ++*removed;
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  // Also where it was gone: who removed it may have died before this.
  return disk_->SyncDirectory(folder);
}

absl::Status CheckpointStore::RemoveFiles(const std::string& name,
                                          const std::set<std::string>& needed, uint64_t* removed) {
  const std::string folder = PathOf(name);
  ASSIGN_OR_RETURN(const std::vector<std::string> files, disk_->List(folder));
  bool empty = true;
  for (const std::string& file : files) {
    if (needed.count(absl::StrCat(name, "/", file)) != 0) {
      empty = false;
      continue;
    }
    const absl::Status status = disk_->Remove(absl::StrCat(folder, "/", file));
    if (absl::IsNotFound(status)) continue;  // Its server was faster.
    RETURN_IF_ERROR(status);
    ++*removed;
  }
  if (!empty) return absl::OkStatus();
  const absl::Status status = disk_->RemoveDirectory(folder);
  // A server that hasn't heard yet that its cut was called off writes into it: another time.
  return absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

absl::StatusOr<Removal> CheckpointStore::RemoveUnneeded(uint32_t keep,
                                                        const std::vector<std::string>& in_progress,
                                                        const std::string& kept_name) {
  CHECK_GE(keep, 1u);
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, List());
  std::set<std::string> untouched(in_progress.begin(), in_progress.end());
  std::set<std::string> needed;  // files
  std::optional<CheckpointId> newest;
  const ListedCheckpoint* foreign = nullptr;  // The newest of another format version.
  uint32_t kept = 0;
  for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
    if (absl::IsUnavailable(listed->status)) return listed->status;
    if (!listed->status.ok()) {
      if (foreign == nullptr && absl::IsFailedPrecondition(listed->status)) foreign = &*listed;
      untouched.insert(listed->name);
      continue;
    }
    if (!newest.has_value()) newest = listed->id;
    if (kept == keep && listed->name != kept_name) continue;
    if (kept < keep) ++kept;
    untouched.insert(listed->name);
    for (const CheckpointShard& shard : listed->manifest.shards()) {
      for (const CheckpointFile& file : shard.files()) needed.insert(file.path());
    }
  }
  Removal removal;
  if (!newest.has_value()) return removal;
  ASSIGN_OR_RETURN(const std::vector<CheckpointId> folders, Folders());
  std::vector<std::string> unneeded;
  for (const CheckpointId& id : folders) {
    const std::string name = CheckpointName(id);
    // What is behind the newest may be being written.
    if (untouched.count(name) != 0 || IsOlder(*newest, id)) continue;
    // Which files those name, nobody here knows: surely none that came later.
    if (foreign != nullptr && IsOlder(id, foreign->id)) {
      removal.held_back = absl::StrCat("what is older than ", foreign->name,
                                       " stays, which may need it: ", foreign->status.message());
    } else {
      unneeded.push_back(name);
    }
  }
  // First every manifest: none outlives a file of its own or of an older checkpoint.
  for (const std::string& name : unneeded) RETURN_IF_ERROR(RemoveManifest(name, &removal.files));
  for (const std::string& name : unneeded) {
    RETURN_IF_ERROR(RemoveFiles(name, needed, &removal.files));
  }
  return removal;
}

absl::Status CheckpointStore::RemoveEmptyFolders() {
  ASSIGN_OR_RETURN(const std::vector<CheckpointId> folders, Folders());
  for (const CheckpointId& id : folders) {
    const absl::Status status = disk_->RemoveDirectory(PathOf(CheckpointName(id)));
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
  }
  return absl::OkStatus();
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

}  // namespace thermocline
