#include "tests/simulation/network_disk.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

bool IsTemporary(const std::string& path) { return absl::EndsWith(path, ".tmp"); }

absl::Status Lost() { return absl::UnavailableError("simulated: the answer was lost"); }

}  // namespace

void NetworkDisk::Begin() {
  ++operations_;
  between_();
}

NetworkDisk::Memory* NetworkDisk::Remembered(const std::string& directory) {
  const auto found = memory_.find(directory);
  if (found == memory_.end()) return nullptr;
  if (operations_ < found->second.until) return &found->second;
  memory_.erase(found);
  return nullptr;
}

void NetworkDisk::Remember(const std::string& directory) {
  if (!random_.Chance(faults_.go_stale)) return;
  const auto names = disk_.List(directory);
  if (!names.ok()) return;
  const uint64_t until =
      operations_ + random_.Below(static_cast<uint64_t>(faults_.stale_operations));
  memory_[directory] = {{names->begin(), names->end()}, until};
}

// A host sees its own changes.
void NetworkDisk::Note(const std::string& path, bool is_there) {
  const auto [directory, name] = SplitPath(path);
  Memory* const memory = Remembered(directory);
  if (memory == nullptr) return;
  if (is_there) {
    memory->names.insert(name);
  } else {
    memory->names.erase(name);
  }
}

absl::Status NetworkDisk::Change(const std::string& path,
                                 const std::function<absl::Status()>& change) {
  // The disk outlives this host's process.
  const auto change_for_good = [&disk = disk_, folder = SplitPath(path).first, change] {
    const absl::Status status = change();
    disk.SyncDirectory(folder).IgnoreError();
    return status;
  };
  if (!random_.Chance(faults_.lose_answer)) return change_for_good();
  ++counters_.lost;
  switch (random_.Below(3)) {
    case 0:
      change_for_good().IgnoreError();
      break;
    case 1:
      ++counters_.late;
      late_.push_back([change_for_good] { change_for_good().IgnoreError(); });
      break;
    default:
      break;
  }
  return Lost();
}

absl::StatusOr<std::unique_ptr<AppendFile>> NetworkDisk::Create(const std::string& path) {
  Begin();
  if (random_.Chance(faults_.lose_answer)) return Lost();
  auto file = disk_.Create(path);
  if (file.ok()) Note(path, true);
  disk_.SyncDirectory(SplitPath(path).first).IgnoreError();
  return file;
}

absl::StatusOr<std::unique_ptr<AppendFile>> NetworkDisk::OpenToAppend(const std::string& path) {
  Begin();
  return disk_.OpenToAppend(path);
}

absl::StatusOr<std::unique_ptr<ReadFile>> NetworkDisk::Open(const std::string& path) {
  Begin();
  const auto [directory, name] = SplitPath(path);
  const Memory* const memory = Remembered(directory);
  auto file = disk_.Open(path);
  if (memory != nullptr && memory->names.count(name) == 0) {
    if (file.ok()) ++counters_.stale;
    return absl::NotFoundError(absl::StrCat("simulated: '", path, "' is not seen"));
  }
  if (memory == nullptr) Remember(directory);
  return file;
}

absl::Status NetworkDisk::Truncate(const std::string& path, uint64_t bytes) {
  Begin();
  return disk_.Truncate(path, bytes);
}

absl::Status NetworkDisk::Rename(const std::string& from, const std::string& to) {
  Begin();
  const absl::Status status =
      Change(to, [&disk = disk_, from, to] { return disk.Rename(from, to); });
  if (status.ok()) {
    Note(from, false);
    Note(to, true);
  }
  return status;
}

absl::Status NetworkDisk::Link(const std::string& from, const std::string& to) {
  Begin();
  const auto [directory, name] = SplitPath(to);
  const Memory* const memory = Remembered(directory);
  const bool seems_free = memory != nullptr && memory->names.count(name) == 0;
  if (faults_.links_by_looking && seems_free && !IsTemporary(to)) return disk_.Rename(from, to);
  const absl::Status status = Change(to, [&disk = disk_, from, to] { return disk.Link(from, to); });
  if (status.ok()) Note(to, true);
  if (absl::IsAlreadyExists(status) && random_.Chance(0.5)) memory_.erase(directory);
  const bool trusts = faults_.trusts_links && !IsTemporary(to);
  if (absl::IsAlreadyExists(status) && trusts) return absl::OkStatus();
  return status;
}

absl::Status NetworkDisk::Remove(const std::string& path) {
  Begin();
  const absl::Status status = Change(path, [&disk = disk_, path] { return disk.Remove(path); });
  if (status.ok()) Note(path, false);
  return status;
}

absl::Status NetworkDisk::CreateDirectory(const std::string& path) {
  Begin();
  const absl::Status status = disk_.CreateDirectory(path);
  if (status.ok()) Note(path, true);
  return status;
}

absl::Status NetworkDisk::RemoveDirectory(const std::string& path) {
  Begin();
  return disk_.RemoveDirectory(path);
}

absl::StatusOr<std::vector<std::string>> NetworkDisk::List(const std::string& directory) {
  Begin();
  const Memory* const memory = Remembered(directory);
  if (memory == nullptr) {
    Remember(directory);
    return disk_.List(directory);
  }
  ++counters_.stale;
  return std::vector<std::string>(memory->names.begin(), memory->names.end());
}

absl::Status NetworkDisk::SyncDirectory(const std::string& directory) {
  Begin();
  return disk_.SyncDirectory(directory);
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> NetworkDisk::Lock(const std::string& directory) {
  Begin();
  return disk_.Lock(directory);
}

}  // namespace thermocline
