#include "worker/api/script_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/process/process_guard.h"
#include "worker/api/script_protocol.h"

namespace thermocline {
namespace {

constexpr char kThreadsVariable[] = "OMP_NUM_THREADS";
// How a script's OpenMP threads wait between its operations: GNU's spin some 10 ms by default and
// Intel's 200, which takes the processors from worker and servers just when the script waits for
// them.
constexpr const char* kShortSpins[] = {"GOMP_SPINCOUNT=500", "KMP_BLOCKTIME=1"};
constexpr char kWaitVariable[] = "OMP_WAIT_POLICY";
constexpr int kEndTickMs = 20;
constexpr int kKillTickMs = 2;

std::atomic<bool> script_runs{false};

// The children of this process, ended ones that nothing has waited for included.
std::vector<pid_t> OwnChildren() {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    siginfo_t info = {};
    // An error: it is no child.
    if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
      children.push_back(pid);
    }
  }
  return children;
}

}  // namespace

ScriptProcess::ScriptProcess(absl::Duration grace) : grace_(grace) {
  CHECK(!script_runs.exchange(true));
}

absl::StatusOr<std::unique_ptr<ScriptProcess>> ScriptProcess::Start(
    const ScriptProcessOptions& options) {
  CHECK(!options.command.empty());
  const absl::StatusOr<std::string> program = FindCommand(options.command[0], options.directory);
  if (!program.ok()) {
    return absl::Status(program.status().code(),
                        absl::StrCat("worker.command: ", program.status().message()));
  }
  std::unique_ptr<ScriptProcess> script(new ScriptProcess(options.grace));
  RETURN_IF_ERROR(script->StartChild(options, *program));
  return script;
}

absl::Status ScriptProcess::StartChild(const ScriptProcessOptions& options,
                                       const std::string& program) {
  // The ended script becomes this process's child, and so does what a guard that was killed leaves.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return absl::UnavailableError(absl::StrCat("PR_SET_CHILD_SUBREAPER: ", std::strerror(errno)));
  }
  before_ = OwnChildren();
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::UnavailableError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  socket_ = sockets[0];
  absl::Cleanup close_it = [fd = sockets[1]] { close(fd); };
  ChildProcessOptions child;
  child.name = "the script";
  child.command = options.command;
  child.command[0] = program;
  child.directory = options.directory;
  child.inherited_fd = sockets[1];
  child.fd_variable = TC_ENVIRONMENT;
  child.closes_others = true;
  child.is_guarded = true;
  child.environment = {"PYTHONUNBUFFERED=1"};
  if (options.threads > 0 && std::getenv(kThreadsVariable) == nullptr) {
    child.environment.push_back(absl::StrCat(kThreadsVariable, "=", options.threads));
  }
  for (const absl::string_view setting : kShortSpins) {
    const std::string name(setting.substr(0, setting.find('=')));
    if (std::getenv(kWaitVariable) == nullptr && std::getenv(name.c_str()) == nullptr) {
      child.environment.emplace_back(setting);
    }
  }
  ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(child));
  child_.emplace(std::move(started));
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, child_->waited_pid(), 0));
  return absl::OkStatus();
}

ScriptProcess::~ScriptProcess() {
  if (child_.has_value()) {
    if (!HasEnded()) child_->Signal(SIGTERM);
    if (!AwaitEnd(grace_)) {
      LogLine(absl::StrCat("the script has not ended within ", absl::FormatDuration(grace_),
                           " of SIGTERM, and is killed"));
    }
    child_.reset();  // Kills what still runs.
    KillOrphans();
  }
  for (const int fd : {socket_, pidfd_}) {
    if (fd >= 0) close(fd);
  }
  script_runs = false;
}

int ScriptProcess::TakeSocket() {
  CHECK_GE(socket_, 0);
  return std::exchange(socket_, -1);
}

bool ScriptProcess::HasEnded() {
  const bool ended = child_->HasEnded();
  ReapOrphans();
  return ended;
}

bool ScriptProcess::AwaitEnd(absl::Duration limit) {
  const Stopwatch watch;
  while (!HasEnded()) {
    if (watch.Elapsed() >= limit) return false;
    pollfd end = {pidfd_, POLLIN, 0};  // Without a descriptor, poll just sleeps.
    poll(&end, 1, kEndTickMs);
  }
  return true;
}

void ScriptProcess::ReapOrphans() {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // The others are waited for elsewhere.
    if (info.si_pid == child_->waited_pid() ||
        std::find(before_.begin(), before_.end(), info.si_pid) != before_.end()) {
      return;
    }
    waitpid(info.si_pid, nullptr, 0);
  }
}

// What a guard that was killed has left; else there is at most the script itself, which has ended.
void ScriptProcess::KillOrphans() {
  const Stopwatch watch;
  while (true) {
    std::vector<pid_t> orphans = OwnChildren();
    const auto is_known = [this](pid_t pid) {
      return std::find(before_.begin(), before_.end(), pid) != before_.end();
    };
    orphans.erase(std::remove_if(orphans.begin(), orphans.end(), is_known), orphans.end());
    if (orphans.empty()) return;
    if (watch.Elapsed() >= kKilledPatience) {
      LogLine(absl::StrCat("WARNING: ", orphans.size(),
                           " processes that the script has started were killed ",
                           absl::FormatDuration(kKilledPatience),
                           " ago and still hang in the kernel; they are left behind: ",
                           absl::StrJoin(orphans, ", ")));
      return;
    }
    // Their numbers are not used again before this process has waited for them. What they leave
    // behind is found in the next round.
    for (const pid_t pid : orphans) kill(pid, SIGKILL);
    for (const pid_t pid : orphans) waitpid(pid, nullptr, WNOHANG);
    poll(nullptr, 0, kKillTickMs);
  }
}

}  // namespace thermocline
