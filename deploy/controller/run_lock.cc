#include "deploy/controller/run_lock.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/disk/disk.h"

namespace thermocline {
namespace {

constexpr absl::Duration kRetryPeriod = absl::Milliseconds(20);
// Beyond the file descriptors that a child gets by number.
constexpr int kLowestFd = 10;

std::string LockFile(const std::string& folder) { return absl::StrCat(folder, "/lock"); }

absl::Status MakeError(const std::string& path) {
  const int error = errno;
  const std::string full = DescribeFullDisk(path, error);
  const std::string what = absl::StrCat("can't lock ", path, ": ", std::strerror(error), full);
  return full.empty() ? absl::UnavailableError(what) : absl::ResourceExhaustedError(what);
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
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

// Who holds the lock, for the messages above.
absl::Status WriteHolder(int fd, const std::string& path) {
  const std::string holder = absl::StrCat(getpid(), " ", HostName(), "\n");
  const ssize_t written = pwrite(fd, holder.data(), holder.size(), 0);
  if (written < 0 || ftruncate(fd, written) != 0) return MakeError(path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder, absl::Duration patience,
                                      const OnWait& on_wait) {
  const std::string path = LockFile(folder);
  const int low_fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (low_fd < 0) return MakeError(path);
  // Not closed by exec: children keep it.
  const int fd = fcntl(low_fd, F_DUPFD, kLowestFd);
  close(low_fd);
  if (fd < 0) return MakeError(path);
  RunLock lock(fd);
  const Stopwatch watch;
  bool waits = false;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return MakeError(path);
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
