#include "tests/testing/simulated_disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

absl::Status Missing(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("can't open '", path, "': no such file"));
}

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("'", path, "': simulated error"));
}

}  // namespace

bool SimulatedDisk::State::TakeFailure(int process) {
  Process& of = processes[process];
  if (of.dead) return true;
  if (of.fail_after < 0 || of.fail_after-- > 0) return false;
  of.dead = of.failure_is_death;
  if (of.dead && of.died) of.died();
  return true;
}

//   keep: whether the medium gets the name's present meaning; if not, the name gets the medium's
//     meaning back
void SimulatedDisk::State::SettleName(const std::string& path, bool keep) {
  auto& files_from = keep ? files : synced_files;
  auto& files_to = keep ? synced_files : files;
  const auto file = files_from.find(path);
  if (file == files_from.end()) {
    files_to.erase(path);
  } else {
    files_to[path] = file->second;
  }
  const auto& directories_from = keep ? directories : synced_directories;
  auto& directories_to = keep ? synced_directories : directories;
  if (directories_from.count(path) == 0) {
    directories_to.erase(path);
  } else {
    directories_to.insert(path);
  }
  changed.erase(path);
}

// Removes the files of folders that were lost.
void SimulatedDisk::State::DropOrphans() {
  const auto lost = [&](std::string path) ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    while (path != "/" && path != ".") {
      path = FolderOf(path);
      if (directories.count(path) == 0) return true;
    }
    return false;
  };
  std::set<std::string> gone;
  for (const auto& [path, file] : files) {
    if (lost(path)) gone.insert(path);
  }
  for (const std::string& path : directories) {
    if (lost(path)) gone.insert(path);
  }
  for (const std::string& path : gone) {
    files.erase(path);
    directories.erase(path);
    SettleName(path, true);
  }
}

std::vector<std::string> SimulatedDisk::State::NamesIn(const std::string& directory) const {
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (path == "/" || path == "." || FolderOf(path) != directory) return;
    names.insert(path.substr(path.rfind('/') + 1));
  };
  for (const auto& [path, file] : files) add(path);
  for (const std::string& path : directories) add(path);
  return {names.begin(), names.end()};
}

class SimulatedDisk::OpenAppendFile : public AppendFile {
 public:
  OpenAppendFile(std::string path, std::shared_ptr<State> state, std::shared_ptr<File> file,
                 int process, uint64_t incarnation)
      : path_(std::move(path)),
        state_(std::move(state)),
        file_(std::move(file)),
        process_(process),
        incarnation_(incarnation) {}

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    absl::MutexLock lock(&state_->mutex);
    if (IsClosed() || state_->processes[process_].dead) return Failed(path_);
    std::string bytes;
    for (absl::string_view piece : pieces) absl::StrAppend(&bytes, piece);
    if (state_->TakeFailure(process_)) {
      Write(bytes.substr(0, bytes.size() / 2));
      return Failed(path_);
    }
    if (bytes.size() > state_->free_bytes) {
      Write(bytes.substr(0, state_->free_bytes));
      return absl::ResourceExhaustedError(absl::StrCat("can't write '", path_, "': disk full"));
    }
    Write(bytes);
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    absl::MutexLock lock(&state_->mutex);
    if (IsClosed() || state_->TakeFailure(process_)) return Failed(path_);
    file_->synced = file_->content;
    file_->dirty_pages.clear();
    return absl::OkStatus();
  }

  absl::Status Truncate(uint64_t bytes) override {
    absl::MutexLock lock(&state_->mutex);
    if (IsClosed() || state_->TakeFailure(process_)) return Failed(path_);
    file_->writer = process_;
    state_->free_bytes += file_->content.size() - bytes;
    file_->content.resize(bytes);
    return absl::OkStatus();
  }

 private:
  bool IsClosed() const ABSL_SHARED_LOCKS_REQUIRED(state_->mutex) {
    return incarnation_ != state_->processes[process_].incarnation;
  }
  void Write(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    if (bytes.empty()) return;
    file_->writer = process_;
    const uint64_t begin = file_->content.size();
    file_->content += bytes;
    if (state_->free_bytes != UINT64_MAX) state_->free_bytes -= bytes.size();
    for (uint64_t page = begin / kPageBytes; page * kPageBytes < file_->content.size(); ++page) {
      file_->dirty_pages.insert(page);
    }
  }

  const std::string path_;
  const std::shared_ptr<State> state_;
  const std::shared_ptr<File> file_;
  const int process_;
  const uint64_t incarnation_;
};

class SimulatedDisk::OpenReadFile : public ReadFile {
 public:
  explicit OpenReadFile(std::string content) : content_(std::move(content)) {}
  uint64_t size() const override { return content_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    CHECK_LE(offset + out.size(), content_.size());
    std::copy_n(content_.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const std::string content_;
};

class SimulatedDisk::HeldLock : public DirectoryLock {
 public:
  HeldLock(std::shared_ptr<State> state, std::string directory, int process, uint64_t incarnation)
      : state_(std::move(state)),
        directory_(std::move(directory)),
        process_(process),
        incarnation_(incarnation) {}
  ~HeldLock() override {
    absl::MutexLock lock(&state_->mutex);
    if (incarnation_ == state_->processes[process_].incarnation) state_->locks.erase(directory_);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string directory_;
  const int process_;
  const uint64_t incarnation_;
};

SimulatedDisk::SimulatedDisk(std::shared_ptr<State> state)
    : state_(std::move(state)), id_([this] {
        absl::MutexLock lock(&state_->mutex);
        state_->processes.emplace_back();
        return static_cast<int>(state_->processes.size()) - 1;
      }()) {}

std::unique_ptr<SimulatedDisk> SimulatedDisk::Share() {
  return std::unique_ptr<SimulatedDisk>(new SimulatedDisk(state_));
}

absl::StatusOr<std::unique_ptr<AppendFile>> SimulatedDisk::Create(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  const Process& process = state_->processes[id_];
  if (state_->directories.count(FolderOf(path)) == 0) return Missing(FolderOf(path));
  if (process.dead) return Failed(path);
  if (state_->files.count(path) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("can't create '", path, "': it exists"));
  }
  auto file = std::make_shared<File>();
  file->writer = id_;
  state_->files[path] = file;
  state_->changed[path] = id_;
  return std::make_unique<OpenAppendFile>(path, state_, std::move(file), id_, process.incarnation);
}

absl::StatusOr<std::unique_ptr<AppendFile>> SimulatedDisk::OpenToAppend(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  const Process& process = state_->processes[id_];
  const auto found = state_->files.find(path);
  if (found == state_->files.end()) return Missing(path);
  if (process.dead) return Failed(path);
  return std::make_unique<OpenAppendFile>(path, state_, found->second, id_, process.incarnation);
}

absl::StatusOr<std::unique_ptr<ReadFile>> SimulatedDisk::Open(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(path);
  if (found == state_->files.end()) return Missing(path);
  return std::make_unique<OpenReadFile>(found->second->content);
}

absl::Status SimulatedDisk::Truncate(const std::string& path, uint64_t bytes) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(path);
  if (found == state_->files.end()) return Missing(path);
  if (state_->TakeFailure(id_)) return Failed(path);
  found->second->content.resize(bytes);
  found->second->synced = found->second->content;
  found->second->dirty_pages.clear();
  return absl::OkStatus();
}

absl::Status SimulatedDisk::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(from);
  if (found == state_->files.end()) return Missing(from);
  if (state_->TakeFailure(id_)) return Failed(from);
  const std::shared_ptr<File> file = found->second;
  state_->files.erase(found);
  state_->files[to] = file;
  state_->changed[from] = state_->changed[to] = id_;
  return absl::OkStatus();
}

absl::Status SimulatedDisk::Link(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(from);
  if (found == state_->files.end()) return Missing(from);
  if (state_->TakeFailure(id_)) return Failed(from);
  if (state_->files.count(to) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("can't link '", to, "': it exists"));
  }
  state_->files[to] = found->second;
  state_->changed[to] = id_;
  return absl::OkStatus();
}

absl::Status SimulatedDisk::Remove(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->files.count(path) == 0) return Missing(path);
  if (state_->TakeFailure(id_)) return Failed(path);
  state_->files.erase(path);
  state_->changed[path] = id_;
  return absl::OkStatus();
}

absl::Status SimulatedDisk::CreateDirectory(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(FolderOf(path)) == 0) return Missing(FolderOf(path));
  if (state_->processes[id_].dead) return Failed(path);
  if (state_->directories.insert(path).second) state_->changed[path] = id_;
  return absl::OkStatus();
}

absl::Status SimulatedDisk::RemoveDirectory(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(path) == 0) return Missing(path);
  if (!state_->NamesIn(path).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't remove folder '", path, "': Directory not empty"));
  }
  if (state_->TakeFailure(id_)) return Failed(path);
  state_->directories.erase(path);
  state_->changed[path] = id_;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SimulatedDisk::List(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(directory) == 0) return Missing(directory);
  return state_->NamesIn(directory);
}

absl::Status SimulatedDisk::SyncDirectory(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->TakeFailure(id_)) return Failed(directory);
  const std::map<std::string, int> changed = state_->changed;
  for (const auto& [path, process] : changed) {
    if (FolderOf(path) == directory) state_->SettleName(path, true);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> SimulatedDisk::Lock(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (!state_->locks.emplace(directory, id_).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", directory, "' is in use by another process"));
  }
  return std::make_unique<HeldLock>(state_, directory, id_, state_->processes[id_].incarnation);
}

void SimulatedDisk::CrashProcess() {
  absl::MutexLock lock(&state_->mutex);
  const uint64_t incarnation = state_->processes[id_].incarnation;
  state_->processes[id_] = Process();
  state_->processes[id_].incarnation = incarnation + 1;
  for (auto it = state_->locks.begin(); it != state_->locks.end();) {
    it = it->second == id_ ? state_->locks.erase(it) : std::next(it);
  }
}

void SimulatedDisk::CrashHost(std::mt19937_64* random) {
  CrashProcess();
  absl::MutexLock lock(&state_->mutex);
  const auto chance = [&] { return (*random)() % 2 == 0; };
  // Folders: each name whose meaning changed has the old one or the new one.
  const std::map<std::string, int> changed = state_->changed;
  for (const auto& [path, process] : changed) {
    if (process == id_) state_->SettleName(path, chance());
  }
  state_->DropOrphans();
  // Files: pages and lengths.
  for (const auto& [path, file] : state_->files) {
    if (file->writer != id_) continue;
    std::string after = file->synced;
    if (chance()) after.resize(std::max(after.size(), file->content.size()), '\0');
    for (const uint64_t page : file->dirty_pages) {
      const uint64_t begin = page * kPageBytes;
      const uint64_t end =
          std::min<uint64_t>({begin + kPageBytes, file->content.size(), after.size()});
      if (begin >= end || !chance()) continue;
      after.replace(begin, end - begin, file->content, begin, end - begin);
    }
    file->content = file->synced = after;
    file->dirty_pages.clear();
  }
}

void SimulatedDisk::SetFreeBytes(uint64_t bytes) {
  absl::MutexLock lock(&state_->mutex);
  state_->free_bytes = bytes;
}

void SimulatedDisk::FailAfter(int operations) {
  absl::MutexLock lock(&state_->mutex);
  Process& process = state_->processes[id_];
  process.fail_after = operations;
  process.failure_is_death = false;
}

void SimulatedDisk::DieAfter(int operations, std::function<void()> died) {
  absl::MutexLock lock(&state_->mutex);
  Process& process = state_->processes[id_];
  process.fail_after = operations;
  process.failure_is_death = true;
  process.died = std::move(died);
}

std::string SimulatedDisk::Content(const std::string& path) const {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(path);
  CHECK(found != state_->files.end());
  return found->second->content;
}

void SimulatedDisk::SetContent(const std::string& path, const std::string& content) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(path);
  CHECK(found != state_->files.end());
  found->second->content = found->second->synced = content;
  found->second->dirty_pages.clear();
}

}  // namespace thermocline
