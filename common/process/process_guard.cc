#include "common/process/process_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/timing.h"

namespace thermocline {
namespace {

constexpr char kName[] = "thermocline-guard";
constexpr int kEndFd = 0;
constexpr int kGuardTickMs = 20;
constexpr size_t kListBytes = 8192;
constexpr int kArgumentsField = 48;  // of /proc/PID/stat, from 1: begin and end of the arguments

// What getdents64 returns of each entry.
struct DirectoryEntry {
  uint64_t inode;
  int64_t offset;
  uint16_t bytes;  // of this entry
  uint8_t type;
  char name[1];
};

// -1: the text is no number.
pid_t ParseNumber(const char* text) {
  pid_t number = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9'; ++at) number = number * 10 + (*at - '0');
  return at == text || *at != '\0' ? -1 : number;
}

// Calls visit(pid) for each process of the machine, without memory of its own.
template <typename Visit>
void ForEachProcess(Visit visit) {
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return;
  alignas(DirectoryEntry) char list[kListBytes];
  long bytes;
  while ((bytes = syscall(SYS_getdents64, proc, list, sizeof(list))) > 0) {
    for (long at = 0; at < bytes;) {
      uint16_t entry_bytes;
      std::memcpy(&entry_bytes, list + at + offsetof(DirectoryEntry, bytes), sizeof(entry_bytes));
      const pid_t pid = ParseNumber(list + at + offsetof(DirectoryEntry, name));
      if (pid > 0) visit(pid);
      at += entry_bytes;
    }
  }
  close(proc);
}

// How the program has ended, which is not waited for; si_pid is 0 while it runs.
siginfo_t EndOf(pid_t program) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(program), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    info.si_pid = 0;
  }
  return info;
}

bool HasEnded(pid_t program) { return EndOf(program).si_pid == program; }

// Waits for children that have ended already, up to the program.
void ReapOrphans(pid_t program) {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         info.si_pid != program) {
    waitpid(info.si_pid, nullptr, 0);
    info.si_pid = 0;
  }
}

// Kills the children of this process, and waits for those that have ended. Returns whether any
// beside the program was there.
bool KillChildren(pid_t program) {
  bool found = false;
  ForEachProcess([program, &found](pid_t pid) {
    if (pid == program) return;
    siginfo_t info = {};
    // An error: it is no child of this process. A child's number is its own until it is waited for.
    if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    found = true;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, WNOHANG);
  });
  return found;
}

// Waits for the end of a child (signal_fd has SIGCHLD), at most timeout_ms; -1: without a limit.
// Where watches_end, also for the end of the pipe, and returns whether it has come.
bool Wait(int signal_fd, bool watches_end, int timeout_ms) {
  pollfd ready[] = {{signal_fd, POLLIN, 0}, {watches_end ? kEndFd : -1, POLLIN, 0}};
  poll(ready, 2, timeout_ms);
  signalfd_siginfo info;
  while (read(signal_fd, &info, sizeof(info)) > 0) {
  }
  return ready[1].revents != 0;
}

void CloseAllBut(int end_fd) {
  if (end_fd != kEndFd) dup2(end_fd, kEndFd);
  // Linux has close_range from 5.9 on.
  if (syscall(SYS_close_range, kEndFd + 1, ~0U, 0) == 0) return;
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  for (rlim_t fd = kEndFd + 1; fd < files.rlim_cur; ++fd) close(static_cast<int>(fd));
}

// Names this process in lists of processes, which show it as a second one of its parent otherwise.
void NameProcess() {
  prctl(PR_SET_NAME, kName);
  char text[1024];
  const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
  if (file >= 0) close(file);
  if (bytes <= 0) return;
  text[bytes] = '\0';
  // Behind the name of the program, which may hold anything, stands field 3.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < kArgumentsField; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  if (at == nullptr) return;
  uintptr_t bounds[2] = {};
  for (uintptr_t& bound : bounds) {
    for (++at; *at >= '0' && *at <= '9'; ++at) bound = bound * 10 + (*at - '0');
  }
  if (bounds[0] == 0 || bounds[1] < bounds[0] + sizeof(kName)) return;
  char* const arguments = reinterpret_cast<char*>(bounds[0]);
  std::memset(arguments, 0, bounds[1] - bounds[0]);
  std::memcpy(arguments, kName, sizeof(kName));
}

[[noreturn]] void EndAs(const siginfo_t& end) {
  if (end.si_pid != 0 && end.si_code == CLD_EXITED) _exit(end.si_status);
  const int number = end.si_pid == 0 ? SIGKILL : end.si_status;
  const rlimit no_core = {0, 0};  // The program has left its own.
  setrlimit(RLIMIT_CORE, &no_core);
  signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  kill(getpid(), number);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  _exit(128 + number);
}

[[noreturn]] void Guard(int end_fd, pid_t program) {
  setpgid(program, program);
  CloseAllBut(end_fd);
  NameProcess();
  sigset_t child_end;
  sigemptyset(&child_end);
  sigaddset(&child_end, SIGCHLD);
  const int signal_fd = signalfd(-1, &child_end, SFD_CLOEXEC | SFD_NONBLOCK);
  while (!HasEnded(program)) {
    // Without the descriptor, it looks from time to time.
    if (Wait(signal_fd, /*watches_end=*/true, signal_fd < 0 ? kGuardTickMs : -1)) break;
    ReapOrphans(program);
  }
  kill(-program, SIGKILL);
  const Stopwatch watch;
  while ((KillChildren(program) || !HasEnded(program)) && watch.Elapsed() < kKilledPatience) {
    Wait(signal_fd, /*watches_end=*/false, kGuardTickMs);
  }
  EndAs(EndOf(program));
}

}  // namespace

pid_t ForkUnderGuard(int end_fd) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  signal(SIGCHLD, SIG_DFL);  // Ignored, it would have no children to wait for.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return -1;
  const pid_t guard = getpid();
  const pid_t program = fork();
  if (program < 0) return -1;
  if (program > 0) Guard(end_fd, program);
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return -1;
  if (getppid() != guard) _exit(1);
  return 0;
}

}  // namespace thermocline
