#include "tests/benchmarks/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/stopwatch.h"

namespace thermocline {

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "thermocline-bench-XXXXXX").string();
  CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& arguments, const std::string& log_path) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int log = open(log_path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  if (log < 0) return absl::UnavailableError(absl::StrCat("cannot write ", log_path));
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  if (pid < 0) return absl::UnavailableError("cannot fork");
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, arguments[0]));
}

ChildProcess::~ChildProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::string> ChildProcess::WaitForFile(const std::string& path,
                                                      absl::Duration timeout) {
  const Stopwatch watch;
  struct stat info;
  while (stat(path.c_str(), &info) != 0) {
    siginfo_t ended = {};
    if (waitid(P_PID, pid_, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == pid_) {
      return absl::UnavailableError(absl::StrCat(name_, " ended at once"));
    }
    if (watch.Elapsed() > timeout) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " did not come up"));
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  std::string line;
  if (S_ISREG(info.st_mode)) {
    std::ifstream file(path);
    std::getline(file, line);
  }
  return line;
}

double ChildProcess::CpuSeconds() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  unsigned long user = 0, system = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) {
    return 0;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace thermocline
