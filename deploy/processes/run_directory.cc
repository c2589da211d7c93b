#include "deploy/processes/run_directory.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/disk/disk.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"
#include "common/process/child_process.h"

namespace thermocline {
namespace {

constexpr int kMaxSameSecond = 1000;

absl::Status MakeError(const std::string& path, int error) {
  const std::string what = absl::StrCat("can't make the run directory ", path, ": ",
                                        std::strerror(error), DescribeFullDisk(path, error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(what);
  if (error == EEXIST) return absl::AlreadyExistsError(what);
  return absl::UnavailableError(what);
}

absl::Status MakeParents(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  return error ? MakeError(path, error.value()) : absl::OkStatus();
}

mode_t UmaskOf(Job::Readers readers) {
  return readers == Job::EVERYONE ? 022 : readers == Job::GROUP ? 027 : 077;
}

// 0, or the error (errno).
int MakeFolder(const std::string& path, Job::Readers readers) {
  const mode_t before = umask(UmaskOf(readers));
  const int error = mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
  umask(before);
  return error;
}

// The nearest folder above it that exists.
std::filesystem::path FolderAbove(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path above = path.parent_path();
  while (!above.empty() && above != above.root_path() && !std::filesystem::exists(above, error)) {
    above = above.parent_path();
  }
  return above;
}

// Files in a run directory survive a crash only if the names of the new folders do.
absl::Status SyncNames(const std::filesystem::path& made, const std::filesystem::path& above) {
  PosixDisk disk;
  for (std::filesystem::path name = made; name != above; name = name.parent_path()) {
    const std::string folder = name.parent_path().string();
    const absl::Status synced = disk.SyncDirectory(folder.empty() ? "." : folder);
    if (!synced.ok() && !absl::IsPermissionDenied(synced)) return synced;
  }
  return absl::OkStatus();
}

// Whether a folder is empty but for a lock, what `submit` leaves, and what a start leaves that
// ended before its job began: its hot rows, or in metrics.jsonl why there are none; where it
// listened for agents; a folder for its checkpoints, without any. Taking the lock then shows
// whether it is held.
bool IsUnused(const std::string& path) {
  const std::set<std::string> allowed = {
      "lock",          "submit",          "certificates", "hot",
      "metrics.jsonl", "controller.json", "HISTORY",      "job.textproto.tmp",
      "http.token",    "http.json",       "http.log"};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "checkpoints" && IsUnused(entry.path().string())) continue;
    if (allowed.count(name) == 0) return false;
  }
  return !error;
}

constexpr absl::Duration kRetryPeriod = absl::Milliseconds(20);

std::string LockFile(const std::string& folder) { return absl::StrCat(folder, "/lock"); }

absl::Status LockError(const std::string& path) {
  const int error = errno;
  const std::string full = DescribeFullDisk(path, error);
  const std::string what = absl::StrCat("can't lock ", path, ": ", std::strerror(error), full);
  return full.empty() ? absl::UnavailableError(what) : absl::ResourceExhaustedError(what);
}

// "another launcher (process 4711 on host a1) uses runs/x", as far as the lock's file says.
std::string DescribeUse(const std::string& folder) {
  std::string process, host;
  std::ifstream(LockFile(folder)) >> process >> host;
  if (!host.empty()) host = absl::StrCat(" on host ", host);
  return absl::StrCat("another launcher",
                      process.empty() ? "" : absl::StrCat(" (process ", process, host, ")"),
                      " uses ", folder);
}

// Writes which process holds the lock, for the messages above.
absl::Status WriteHolder(int fd, const std::string& path) {
  const std::string holder = absl::StrCat(getpid(), " ", HostName(), "\n");
  const ssize_t written = pwrite(fd, holder.data(), holder.size(), 0);
  if (written < 0 || ftruncate(fd, written) != 0) return LockError(path);
  return absl::OkStatus();
}

}  // namespace

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

void MakeFilesFor(Job::Readers readers) { umask(UmaskOf(readers)); }

absl::StatusOr<RunDirectory> RunDirectory::Create(const std::string& path,
                                                  const std::string& job_name, absl::Time now,
                                                  Job::Readers readers) {
  const std::string base =
      !path.empty() ? path
                    : absl::StrCat("runs/", job_name, "-",
                                   absl::FormatTime("%Y%m%d-%H%M%S", now, absl::LocalTimeZone()));
  const std::filesystem::path above = FolderAbove(base);
  const absl::Status parents = MakeParents(base);
  if (!parents.ok()) return parents;
  for (int attempt = 1; attempt <= kMaxSameSecond; ++attempt) {
    const std::string candidate = attempt == 1 ? base : absl::StrCat(base, "-", attempt);
    const int error = MakeFolder(candidate, readers);
    if (error == 0) {
      RETURN_IF_ERROR(SyncNames(candidate, above));
      return RunDirectory(candidate, /*is_new=*/true);
    }
    if (error != EEXIST) return MakeError(candidate, error);
    if (path.empty()) continue;
    absl::StatusOr<RunDirectory> unused = OpenUnused(path);
    return absl::IsNotFound(unused.status()) ? MakeError(path, EEXIST) : std::move(unused);
  }
  return MakeError(base, EEXIST);
}

absl::StatusOr<RunDirectory> RunDirectory::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    close(fd);
    return RunDirectory(path, /*is_new=*/false);
  }
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat("there is no run directory ", path));
  }
  return absl::UnavailableError(
      absl::StrCat("can't open the run directory ", path, ": ", std::strerror(error)));
}

absl::StatusOr<RunDirectory> RunDirectory::OpenUnused(const std::string& path) {
  ASSIGN_OR_RETURN(RunDirectory directory, Open(path));
  if (IsUnused(path)) return directory;
  const bool was_run = HasBegun(path, absl::ZeroDuration()).value_or(true);
  return absl::AlreadyExistsError(
      absl::StrCat("the run directory ", path, " is not empty; name another with --run-dir",
                   was_run ? ", or go on with what was run there (--resume)" : ""));
}

std::string RunDirectory::File(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

std::string RunDirectory::CheckpointDirectory() const { return AbsolutePath(File("checkpoints")); }

std::string RunDirectory::HotDirectory() const { return AbsolutePath(File("hot")); }

void RunDirectory::FillHotDirectory(Job* job) const {
  if (!CountsHotRows(*job) || !job->calibration().directory().empty()) return;
  job->mutable_calibration()->set_directory(HotDirectory());
}

absl::Status RunDirectory::Write(absl::string_view name, absl::string_view text) const {
  const std::string path = File(name);
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("can't write ", path, ": ", std::strerror(error),
                                               DescribeFullDisk(path, error)));
  }
  return absl::OkStatus();
}

absl::Status RunDirectory::Remove(absl::string_view name) const {
  if (unlink(File(name).c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("can't remove ", File(name), ": ", std::strerror(errno)));
}

absl::StatusOr<bool> HasBegun(const std::string& path, absl::Duration patience) {
  const std::string file = path + "/job.textproto";
  const Stopwatch watch;
  while (true) {
    char first;
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const bool is_read = fd >= 0 && read(fd, &first, 1) >= 0;
    const int error = errno;
    if (fd >= 0) close(fd);
    if (is_read) return true;
    if (fd < 0 && (error == ENOENT || error == ENOTDIR)) return false;
    if (watch.Elapsed() >= patience) {
      return absl::UnavailableError(
          absl::StrCat("can't read ", file, ": ", std::strerror(error),
                       "; whether there is a run to go on with is not known"));
    }
    absl::SleepFor(kRetryPeriod);
  }
}

// An error is ignored: what is left does no harm.
void RunDirectory::RemoveAll() const {
  std::error_code error;
  if (is_new_) std::filesystem::remove_all(path_, error);
}

// The lock
// ------------------------------------------------------------------------------------------------

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder, absl::Duration patience,
                                      const OnWait& on_wait) {
  const std::string path = LockFile(folder);
  // Children keep it.
  const int fd =
      MoveHigh(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644), /*is_inherited=*/true);
  if (fd < 0) return LockError(path);
  RunLock lock(fd);
  const Stopwatch watch;
  bool waits = false;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return LockError(path);
    if (watch.Elapsed() >= patience) {
      return absl::FailedPreconditionError(DescribeUse(folder));
    }
    if (!waits && on_wait) {
      on_wait(absl::StrCat(DescribeUse(folder), "; waiting up to ", absl::FormatDuration(patience),
                           " for its processes to end"));
    }
    waits = true;
    absl::SleepFor(kRetryPeriod);
  }
  RETURN_IF_ERROR(WriteHolder(fd, path));
  return lock;
}

void RunLock::KeepFromChildren() { fcntl(fd_, F_SETFD, FD_CLOEXEC); }

bool RunLock::IsHeld(const std::string& folder) {
  const int fd = open(LockFile(folder).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return held;
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace thermocline
