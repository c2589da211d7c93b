#include "deploy/controller/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/stopwatch.h"

namespace thermocline {
namespace {

constexpr absl::Duration kRetryPeriod = absl::Milliseconds(20);
// Beyond the file descriptors that a child gets by number.
constexpr int kLowestFd = 10;

std::string LockFile(const std::string& folder) { return absl::StrCat(folder, "/lock"); }

absl::Status MakeError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("can't lock ", path, ": ", std::strerror(errno)));
}

std::string HolderOf(const std::string& path) {
  std::string process;
  std::ifstream(path) >> process;
  return process.empty() ? "" : absl::StrCat(" (process ", process, ")");
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder, absl::Duration patience) {
  const std::string path = LockFile(folder);
  const int low_fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (low_fd < 0) return MakeError(path);
  // Not closed by exec: children keep it.
  const int fd = fcntl(low_fd, F_DUPFD, kLowestFd);
  close(low_fd);
  if (fd < 0) return MakeError(path);
  RunLock lock(fd);
  const Stopwatch watch;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return MakeError(path);
    if (watch.Elapsed() >= patience) {
      return absl::FailedPreconditionError(
          absl::StrCat("another launcher", HolderOf(path), " uses ", folder));
    }
    absl::SleepFor(kRetryPeriod);
  }
  // For the message above; the lock doesn't need it.
  const std::string process = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, process.data(), process.size(), 0) < 0) {
    return MakeError(path);
  }
  return lock;
}

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
