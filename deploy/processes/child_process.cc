#include "deploy/processes/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr std::streamoff kTailBytes = 64 << 10;
constexpr size_t kMaxShownBytes = 2000;
constexpr int kQuotedLines = 15;

// Packages of the source tree that hold programs.
constexpr const char* kPackages[] = {"server", "worker", "deploy", "tests/benchmarks"};

std::vector<std::string> Candidates(absl::string_view name, const std::string& bin_dir) {
  if (!bin_dir.empty()) return {absl::StrCat(bin_dir, "/", name)};
  const std::filesystem::path self = ThisProgram();
  if (self.empty()) return {};
  const std::string folder = self.parent_path().string();
  std::vector<std::string> candidates = {absl::StrCat(folder, "/", name)};
  // The build puts this program into <root>/deploy.
  for (const char* package : kPackages) {
    candidates.push_back(absl::StrCat(folder, "/../", package, "/", name));
  }
  return candidates;
}

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

constexpr int kInheritedFd = 3;
// Beyond the file descriptors that a child gets by number.
constexpr int kLowestFd = 10;
constexpr int kExecFailedCode = 127;

// What the child needs between fork and exec, prepared before: there, only async-signal-safe calls
// are allowed.
struct Prepared {
  std::vector<char*> argv;
  int log_fd = -1;
  int inherited_fd = -1;
  int error_fd = -1;  // A successful exec closes it; else it carries errno.
  bool ignores_term = false;
  pid_t parent = 0;
};

[[noreturn]] void RunChild(const Prepared& prepared) {
  const auto fail = [&] {
    const int error = errno;
    const ssize_t written = write(prepared.error_fd, &error, sizeof(error));
    _exit(written == sizeof(error) ? kExecFailedCode : kExecFailedCode + 1);
  };
  setpgid(0, 0);
  // The child must not outlive its parent, not even one that is killed before this line.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != prepared.parent) _exit(kExecFailedCode);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
  if (prepared.ignores_term) signal(SIGTERM, SIG_IGN);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0) fail();
  if (dup2(prepared.log_fd, STDOUT_FILENO) < 0) fail();
  if (dup2(prepared.log_fd, STDERR_FILENO) < 0) fail();
  if (prepared.inherited_fd == kInheritedFd) {
    if (fcntl(kInheritedFd, F_SETFD, 0) != 0) fail();
  } else if (prepared.inherited_fd >= 0) {
    if (dup2(prepared.inherited_fd, kInheritedFd) < 0) fail();
  }
  execv(prepared.argv[0], prepared.argv.data());
  fail();
  __builtin_unreachable();
}

absl::Status StartError(const ChildProcessOptions& options, int error) {
  const std::string what =
      absl::StrCat(options.name, ": can't start ", options.command[0], ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(what);
  if (error == EACCES) return absl::PermissionDeniedError(what);
  return absl::UnavailableError(what);
}

}  // namespace

int MoveHigh(int fd, bool is_inherited) {
  const int high = fd < 0 ? -1 : fcntl(fd, is_inherited ? F_DUPFD : F_DUPFD_CLOEXEC, kLowestFd);
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return high;
}

int MakeMemoryFile(const char* name) {
  return MoveHigh(memfd_create(name, MFD_CLOEXEC), /*is_inherited=*/true);
}

std::string ThisProgram() {
  const char* const packaged = std::getenv("THERMOCLINE_PROGRAM");
  if (packaged != nullptr && *packaged != '\0') return packaged;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

absl::StatusOr<std::string> FindProgram(absl::string_view name, const std::string& bin_dir) {
  const std::vector<std::string> candidates = Candidates(name, bin_dir);
  for (const std::string& candidate : candidates) {
    if (!IsProgram(candidate)) continue;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::canonical(candidate, error);
    return error ? candidate : path.string();
  }
  return absl::NotFoundError(absl::StrCat("can't find the program ", name, "; looked for ",
                                          absl::StrJoin(candidates, ", ")));
}

std::vector<std::string> LogTail(const std::string& path, int max_lines, uint64_t begin_bytes,
                                 uint64_t* end) {
  if (end != nullptr) *end = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  if (end != nullptr) *end = static_cast<uint64_t>(size);
  const std::streamoff first = std::min(size, static_cast<std::streamoff>(begin_bytes));
  const std::streamoff begin = std::max(first, size - kTailBytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (begin > first) lines.erase(lines.begin());  // The first line is incomplete.
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t wanted = static_cast<size_t>(std::max(0, max_lines));
  if (lines.size() > wanted) lines.erase(lines.begin(), lines.end() - wanted);
  for (std::string& line : lines) line.resize(std::min(line.size(), kMaxShownBytes));
  return lines;
}

std::string QuoteLogTail(const std::string& path, uint64_t begin_bytes) {
  std::string quoted;
  for (const std::string& line : LogTail(path, kQuotedLines, begin_bytes)) {
    absl::StrAppend(&quoted, "\n  | ", line);
  }
  return quoted;
}

std::vector<std::string> NewLogLines(const std::string& path, uint64_t* offset) {
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(static_cast<std::streamoff>(*offset))) return {};
  std::string text(static_cast<size_t>(kTailBytes), '\0');
  file.read(text.data(), kTailBytes);
  text.resize(static_cast<size_t>(file.gcount()));
  // A line that fills all that was read counts as whole.
  const size_t end = text.rfind('\n');
  if (end == std::string::npos && text.size() < static_cast<size_t>(kTailBytes)) return {};
  *offset += end == std::string::npos ? text.size() : end + 1;
  std::vector<std::string> lines = absl::StrSplit(text.substr(0, end), '\n');
  for (std::string& line : lines) line.resize(std::min(line.size(), kMaxShownBytes));
  return lines;
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildProcessOptions& options) {
  CHECK(!options.command.empty());
  Prepared prepared;
  for (const std::string& argument : options.command) {
    prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  prepared.argv.push_back(nullptr);
  prepared.inherited_fd = options.inherited_fd;
  prepared.parent = getpid();
  prepared.ignores_term = options.ignores_term;
  const int log_fd =
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::UnavailableError(
        absl::StrCat(options.name, ": can't open ", options.log_path, ": ", std::strerror(errno)));
  }
  prepared.log_fd = MoveHigh(log_fd, /*is_inherited=*/false);
  struct stat log_info = {};
  fstat(prepared.log_fd, &log_info);  // Stays 0 where the log has no size.
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    const int error = errno;
    close(prepared.log_fd);
    return StartError(options, error);
  }
  prepared.error_fd = MoveHigh(error_pipe[1], /*is_inherited=*/false);
  const pid_t pid = fork();
  const int fork_error = errno;
  if (pid == 0) RunChild(prepared);
  close(prepared.error_fd);
  close(prepared.log_fd);
  if (pid > 0) setpgid(pid, pid);  // The child does so, too: its group exists after either call.
  int error = pid < 0 ? fork_error : 0;
  if (pid > 0) {
    // Ends at the child's exec or exit.
    ssize_t got;
    do {
      got = read(error_pipe[0], &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
    if (got != sizeof(error)) error = 0;
    if (error != 0) waitpid(pid, nullptr, 0);
  }
  close(error_pipe[0]);
  if (error != 0) return StartError(options, error);
  return ChildProcess(options, static_cast<uint64_t>(log_info.st_size), pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : options_(std::move(other.options_)),
      log_begin_(other.log_begin_),
      pid_(other.pid_),
      ended_(other.ended_),
      wait_status_(other.wait_status_),
      kills_before_(std::move(other.kills_before_)),
      want_of_memory_(std::move(other.want_of_memory_)) {
  other.pid_ = -1;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || HasEnded()) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool ChildProcess::HasEnded() {
  if (ended_) return true;
  siginfo_t info = {};
  const int got = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  CHECK_EQ(got, 0);  // Only this object waits for the child.
  if (info.si_pid != pid_) return false;
  // Kills processes that the child started and left behind. The group keeps its number while the
  // child is a zombie.
  kill(-pid_, SIGKILL);
  CHECK_EQ(waitpid(pid_, &wait_status_, 0), pid_);
  ended_ = true;
  if (WIFSIGNALED(wait_status_) && WTERMSIG(wait_status_) == SIGKILL) {
    want_of_memory_ = DescribeMemoryKills(kills_before_, CountMemoryKills());
  }
  return ended_;
}

std::optional<int> ChildProcess::exit_code() const {
  CHECK(ended_);
  if (!WIFEXITED(wait_status_)) return std::nullopt;
  return WEXITSTATUS(wait_status_);
}

std::string ChildProcess::DescribeEnd() const {
  CHECK(ended_);
  if (WIFSIGNALED(wait_status_)) {
    const int signal = WTERMSIG(wait_status_);
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")",
                        want_of_memory_);
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status_));
}

void ChildProcess::Signal(int signal) {
  if (!ended_ && pid_ > 0) kill(-pid_, signal);
}

}  // namespace thermocline
