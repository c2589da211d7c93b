#include "common/process/child_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/text.h"
#include "common/base/timing.h"

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

// Where a shell looks without $PATH.
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

constexpr int kInheritedFd = 3;
// Beyond the file descriptors that a child gets by number.
constexpr int kLowestFd = 10;
constexpr int kExecFailedCode = 127;
constexpr int kKillTickMs = 2;
constexpr size_t kMostDigits = 20;  // of a process's number

// What the child needs between fork and exec, prepared before: there, only async-signal-safe calls
// are allowed.
struct Prepared {
  std::vector<char*> argv;
  std::vector<std::string> variables;
  std::vector<char*> environment;  // of `variables`
  char* pid_digits = nullptr;      // where the child writes its number; null: nowhere
  const char* directory = nullptr;
  int log_fd = -1;
  int inherited_fd = -1;
  int report_fd = -1;  // It carries StartReports; a successful exec closes it.
  int guard_fd = -1;   // The reading end of the guard's pipe; -1: there is no guard.
  bool ignores_term = false;
  bool closes_others = false;
  pid_t parent = 0;
};

// What the child sends between fork and exec: its number, then its failure. The last one counts.
struct StartReport {
  pid_t pid = -1;
  int error = 0;  // errno; 0: none
  bool is_of_directory = false;
};

// Writes the digits of `number` and a 0 behind them.
void WriteDigits(pid_t number, char* out) {
  char reversed[kMostDigits];
  size_t count = 0;
  for (; number > 0 || count == 0; number /= 10) {
    reversed[count++] = static_cast<char>('0' + number % 10);
  }
  while (count > 0) *out++ = reversed[--count];
  *out = '\0';
}

[[noreturn]] void RunChild(const Prepared& prepared) {
  StartReport report;
  const auto tell = [&] {
    return write(prepared.report_fd, &report, sizeof(report)) == sizeof(report);
  };
  const auto fail = [&] {
    report.error = errno;
    _exit(tell() ? kExecFailedCode : kExecFailedCode + 1);
  };
  setpgid(0, 0);
  if (prepared.guard_fd >= 0) {
    if (ForkUnderGuard(prepared.guard_fd) != 0) fail();
  } else {
    // The child must not outlive its parent, not even one that is killed before this line.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
    if (getppid() != prepared.parent) _exit(kExecFailedCode);
  }
  report.pid = getpid();
  if (!tell()) fail();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
  if (prepared.ignores_term) signal(SIGTERM, SIG_IGN);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0) fail();
  if (prepared.log_fd >= 0) {
    if (dup2(prepared.log_fd, STDOUT_FILENO) < 0) fail();
    if (dup2(prepared.log_fd, STDERR_FILENO) < 0) fail();
  }
  if (prepared.inherited_fd == kInheritedFd) {
    if (fcntl(kInheritedFd, F_SETFD, 0) != 0) fail();
  } else if (prepared.inherited_fd >= 0) {
    if (dup2(prepared.inherited_fd, kInheritedFd) < 0) fail();
  }
  if (prepared.closes_others) {
    // At its exec. Linux has it from 5.11 on; before, the child keeps what it would inherit anyway.
    syscall(SYS_close_range, kInheritedFd + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  }
  if (prepared.pid_digits != nullptr) WriteDigits(getpid(), prepared.pid_digits);
  if (prepared.directory != nullptr && chdir(prepared.directory) != 0) {
    report.is_of_directory = true;
    fail();
  }
  execve(prepared.argv[0], prepared.argv.data(), prepared.environment.data());
  fail();
  __builtin_unreachable();
}

// The name of "NAME=VALUE".
absl::string_view VariableName(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

// Sets the environment of the child: this process's own with the changes of `options`.
void PrepareEnvironment(const ChildProcessOptions& options, Prepared* prepared) {
  std::vector<std::string> changes = options.environment;
  if (!options.fd_variable.empty()) {
    changes.push_back(absl::StrCat(options.fd_variable, "=", kInheritedFd, ":"));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const bool is_changed =
        std::any_of(changes.begin(), changes.end(),
                    [name = VariableName(*variable)](const std::string& change) {
                      return VariableName(change) == name;
                    });
    if (!is_changed) prepared->variables.push_back(*variable);
  }
  prepared->variables.insert(prepared->variables.end(), changes.begin(), changes.end());
  if (!options.fd_variable.empty()) {
    std::string& last = prepared->variables.back();
    const size_t size = last.size();
    last.resize(size + kMostDigits + 1);
    prepared->pid_digits = &last[size];
  }
  for (std::string& variable : prepared->variables) {
    prepared->environment.push_back(variable.data());
  }
  prepared->environment.push_back(nullptr);
}

// Reads what the child, or its guard `pid`, sends until the child's exec or exit.
StartReport ReadReports(int fd, pid_t pid) {
  StartReport last = {pid}, next;
  while (true) {
    const ssize_t got = read(fd, &next, sizeof(next));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(next)) return last;
    if (next.pid < 0) next.pid = pid;
    last = next;
  }
}

// Whether a process is a child of this one, running or not waited for.
bool IsChild(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

absl::Status StartError(const ChildProcessOptions& options, const StartReport& failure) {
  const std::string what =
      absl::StrCat(options.name, ": can't ",
                   failure.is_of_directory ? absl::StrCat("enter the directory ", options.directory)
                                           : absl::StrCat("start ", options.command[0]),
                   ": ", std::strerror(failure.error));
  if (failure.error == ENOENT) return absl::NotFoundError(what);
  if (failure.error == EACCES) return absl::PermissionDeniedError(what);
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

absl::StatusOr<std::string> FindCommand(const std::string& program, const std::string& directory) {
  std::vector<std::filesystem::path> candidates;
  std::string where;
  if (absl::StrContains(program, '/')) {
    candidates.push_back(std::filesystem::path(directory) / program);
    if (!directory.empty() && program[0] != '/') where = absl::StrCat(" in ", directory);
  } else {
    const char* const path = std::getenv("PATH");
    const absl::string_view folders = path == nullptr ? kDefaultPath : path;
    for (const absl::string_view folder : absl::StrSplit(folders, ':')) {
      candidates.push_back(std::filesystem::path(std::string(folder)) / program);
    }
    where = absl::StrCat(" on PATH (", folders, ")");
  }
  std::string not_executable;
  for (const std::filesystem::path& candidate : candidates) {
    std::error_code error;
    const std::string path = std::filesystem::absolute(candidate, error).string();
    if (error || !std::filesystem::is_regular_file(path, error)) continue;
    if (IsProgram(path)) return path;
    not_executable = path;
  }
  if (!not_executable.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        not_executable,
        " is not executable; a Python script is the argument of python3: [\"python3\", \"", program,
        "\"]"));
  }
  return absl::NotFoundError(absl::StrCat("there is no program '", program, "'", where));
}

std::string ValidUtf8(absl::string_view text) {
  if (IsUtf8(text)) return std::string(text);
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 1;  // A character has up to four.
    while (bytes <= 4 && !IsUtf8(text.substr(at, bytes))) ++bytes;
    if (bytes > 4) {
      valid += '?';
      ++at;
    } else {
      absl::StrAppend(&valid, text.substr(at, bytes));
      at += bytes;
    }
  }
  return valid;
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
  for (std::string& line : lines) line = ValidUtf8(line.substr(0, kMaxShownBytes));
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
  for (std::string& line : lines) line = ValidUtf8(line.substr(0, kMaxShownBytes));
  return lines;
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildProcessOptions& options) {
  CHECK(!options.command.empty());
  CHECK(options.fd_variable.empty() || options.inherited_fd >= 0);
  Prepared prepared;
  for (const std::string& argument : options.command) {
    prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  prepared.argv.push_back(nullptr);
  PrepareEnvironment(options, &prepared);
  if (!options.directory.empty()) prepared.directory = options.directory.c_str();
  prepared.inherited_fd = options.inherited_fd;
  prepared.parent = getpid();
  prepared.ignores_term = options.ignores_term;
  prepared.closes_others = options.closes_others;
  struct stat log_info = {};  // Stays 0 where there is no log, or where it has no size.
  if (!options.log_path.empty()) {
    const int log_fd =
        open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) {
      return absl::UnavailableError(absl::StrCat(options.name, ": can't open ", options.log_path,
                                                 ": ", std::strerror(errno)));
    }
    prepared.log_fd = MoveHigh(log_fd, /*is_inherited=*/false);
    fstat(prepared.log_fd, &log_info);
  }
  int report_pipe[2], guard_pipe[2] = {-1, -1};
  int error = pipe2(report_pipe, O_CLOEXEC) == 0 ? 0 : errno;
  if (error == 0 && options.is_guarded && pipe2(guard_pipe, O_CLOEXEC) != 0) {
    error = errno;
    close(report_pipe[0]);
    close(report_pipe[1]);
  }
  if (error != 0) {
    if (prepared.log_fd >= 0) close(prepared.log_fd);
    return StartError(options, {-1, error});
  }
  prepared.report_fd = MoveHigh(report_pipe[1], /*is_inherited=*/false);
  prepared.guard_fd = guard_pipe[0];
  const pid_t pid = fork();
  StartReport report = {pid, pid < 0 ? errno : 0};
  if (pid == 0) RunChild(prepared);
  for (const int fd : {prepared.report_fd, prepared.log_fd, prepared.guard_fd}) {
    if (fd >= 0) close(fd);
  }
  if (pid > 0) {
    setpgid(pid, pid);  // The child does so, too: its group exists after either call.
    report = ReadReports(report_pipe[0], pid);
    if (report.error != 0) waitpid(pid, nullptr, 0);
    // A child that was guarded is this process's now, if that is a reaper, and has ended.
    if (report.error != 0 && report.pid != pid) waitpid(report.pid, nullptr, 0);
  }
  close(report_pipe[0]);
  if (report.error != 0) {
    if (guard_pipe[1] >= 0) close(guard_pipe[1]);
    return StartError(options, report);
  }
  return ChildProcess(options, static_cast<uint64_t>(log_info.st_size), report.pid, pid,
                      guard_pipe[1]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : options_(std::move(other.options_)),
      log_begin_(other.log_begin_),
      pid_(std::exchange(other.pid_, -1)),
      waited_pid_(other.waited_pid_),
      guard_fd_(std::exchange(other.guard_fd_, -1)),
      ended_(other.ended_),
      wait_status_(other.wait_status_),
      kills_before_(std::move(other.kills_before_)),
      want_of_memory_(std::move(other.want_of_memory_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  if (guard_fd_ >= 0) close(guard_fd_);
  if (AwaitKill()) return;
  if (waited_pid_ != pid_) {
    kill(waited_pid_, SIGKILL);
    if (AwaitKill()) return;
  }
  LogLine(absl::StrCat("WARNING: ", options_.name, " (process ", pid_, ") was killed ",
                       absl::FormatDuration(kKilledPatience),
                       " ago and still hangs in the kernel; it is left behind"));
}

bool ChildProcess::AwaitKill() {
  const Stopwatch watch;
  while (!HasEnded()) {
    if (watch.Elapsed() >= kKilledPatience) return false;
    poll(nullptr, 0, kKillTickMs);
  }
  return true;
}

bool ChildProcess::HasEnded() {
  if (ended_) return true;
  siginfo_t info = {};
  const int got = waitid(P_PID, static_cast<id_t>(waited_pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  CHECK_EQ(got, 0);  // Only this object waits for the child.
  if (info.si_pid != waited_pid_) return false;
  // Kills processes that the child started and left behind. The group keeps its number while the
  // child is a zombie. A guard has done so, unless it was killed.
  if (guard_fd_ < 0 || IsChild(pid_)) kill(-pid_, SIGKILL);
  CHECK_EQ(waitpid(waited_pid_, &wait_status_, 0), waited_pid_);
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

std::optional<int> ChildProcess::signal() const {
  CHECK(ended_);
  if (!WIFSIGNALED(wait_status_)) return std::nullopt;
  return WTERMSIG(wait_status_);
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
