#include "common/disk/simulated_disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

std::string DirectoryOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

absl::Status Missing(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("can't open '", path, "': no such file"));
}

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("'", path, "': simulated error"));
}

}  // namespace

bool SimulatedDisk::State::TakeFailure() {
  if (dead) return true;
  if (fail_after < 0 || fail_after-- > 0) return false;
  dead = failure_is_death;
  return true;
}

std::vector<std::string> SimulatedDisk::State::NamesIn(const std::string& directory) const {
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (path != directory && DirectoryOf(path) == directory) {
      names.insert(path.substr(directory.size() + 1));
    }
  };
  for (const auto& [path, file] : files) add(path);
  for (const std::string& path : directories) add(path);
  return {names.begin(), names.end()};
}

class SimulatedDisk::OpenAppendFile : public AppendFile {
 public:
  OpenAppendFile(std::string path, std::shared_ptr<State> state, std::shared_ptr<File> file,
                 uint64_t incarnation)
      : path_(std::move(path)),
        state_(std::move(state)),
        file_(std::move(file)),
        incarnation_(incarnation) {}

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    absl::MutexLock lock(&state_->mutex);
    if (incarnation_ != state_->incarnation || state_->dead) return Failed(path_);
    std::string bytes;
    for (absl::string_view piece : pieces) absl::StrAppend(&bytes, piece);
    if (state_->TakeFailure()) {
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
    if (incarnation_ != state_->incarnation || state_->TakeFailure()) return Failed(path_);
    file_->synced = file_->content;
    file_->dirty_pages.clear();
    return absl::OkStatus();
  }

  absl::Status Truncate(uint64_t bytes) override {
    absl::MutexLock lock(&state_->mutex);
    if (incarnation_ != state_->incarnation || state_->TakeFailure()) return Failed(path_);
    state_->free_bytes += file_->content.size() - bytes;
    file_->content.resize(bytes);
    return absl::OkStatus();
  }

 private:
  void Write(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    if (bytes.empty()) return;
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
  HeldLock(std::shared_ptr<State> state, std::string directory, uint64_t incarnation)
      : state_(std::move(state)), directory_(std::move(directory)), incarnation_(incarnation) {}
  ~HeldLock() override {
    absl::MutexLock lock(&state_->mutex);
    if (incarnation_ == state_->incarnation) state_->locks.erase(directory_);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string directory_;
  const uint64_t incarnation_;
};

absl::StatusOr<std::unique_ptr<AppendFile>> SimulatedDisk::Create(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(DirectoryOf(path)) == 0) return Missing(DirectoryOf(path));
  if (state_->dead) return Failed(path);
  if (state_->files.count(path) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("can't create '", path, "': it exists"));
  }
  auto file = std::make_shared<File>();
  state_->files[path] = file;
  return std::make_unique<OpenAppendFile>(path, state_, std::move(file), state_->incarnation);
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
  if (state_->TakeFailure()) return Failed(path);
  found->second->content.resize(bytes);
  found->second->synced = found->second->content;
  found->second->dirty_pages.clear();
  return absl::OkStatus();
}

absl::Status SimulatedDisk::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->files.find(from);
  if (found == state_->files.end()) return Missing(from);
  if (state_->TakeFailure()) return Failed(from);
  const std::shared_ptr<File> file = found->second;
  state_->files.erase(found);
  state_->files[to] = file;
  return absl::OkStatus();
}

absl::Status SimulatedDisk::Remove(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->files.count(path) == 0) return Missing(path);
  if (state_->TakeFailure()) return Failed(path);
  state_->files.erase(path);
  return absl::OkStatus();
}

absl::Status SimulatedDisk::CreateDirectory(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  state_->directories.insert(path);
  return absl::OkStatus();
}

absl::Status SimulatedDisk::RemoveDirectory(const std::string& path) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(path) == 0) return Missing(path);
  if (!state_->NamesIn(path).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't remove folder '", path, "': Directory not empty"));
  }
  if (state_->TakeFailure()) return Failed(path);
  state_->directories.erase(path);
  auto& synced = state_->synced_files;
  for (auto it = synced.begin(); it != synced.end();) {
    it = DirectoryOf(it->first) == path ? synced.erase(it) : std::next(it);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SimulatedDisk::List(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->directories.count(directory) == 0) return Missing(directory);
  return state_->NamesIn(directory);
}

absl::Status SimulatedDisk::SyncDirectory(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->TakeFailure()) return Failed(directory);
  auto& synced = state_->synced_files;
  for (auto it = synced.begin(); it != synced.end();) {
    it = DirectoryOf(it->first) == directory ? synced.erase(it) : std::next(it);
  }
  for (const auto& [path, file] : state_->files) {
    if (DirectoryOf(path) == directory) synced[path] = file;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> SimulatedDisk::Lock(const std::string& directory) {
  absl::MutexLock lock(&state_->mutex);
  if (!state_->locks.insert(directory).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", directory, "' is in use by another process"));
  }
  return std::make_unique<HeldLock>(state_, directory, state_->incarnation);
}

void SimulatedDisk::CrashProcess() {
  absl::MutexLock lock(&state_->mutex);
  ++state_->incarnation;
  state_->locks.clear();
  state_->fail_after = -1;
  state_->dead = false;
}

void SimulatedDisk::CrashHost(std::mt19937_64* random) {
  CrashProcess();
  absl::MutexLock lock(&state_->mutex);
  const auto chance = [&] { return (*random)() % 2 == 0; };
  // Folders: each name whose meaning changed has the old one or the new one.
  std::set<std::string> paths;
  for (const auto& [path, file] : state_->files) paths.insert(path);
  for (const auto& [path, file] : state_->synced_files) paths.insert(path);
  std::map<std::string, std::shared_ptr<File>> left;
  for (const std::string& path : paths) {
    const auto& from = chance() ? state_->files : state_->synced_files;
    const auto found = from.find(path);
    if (found != from.end()) left[path] = found->second;
  }
  state_->files = state_->synced_files = left;
  // Files: pages and lengths.
  for (const auto& [path, file] : state_->files) {
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
  state_->fail_after = operations;
  state_->failure_is_death = false;
}

void SimulatedDisk::DieAfter(int operations) {
  absl::MutexLock lock(&state_->mutex);
  state_->fail_after = operations;
  state_->failure_is_death = true;
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
