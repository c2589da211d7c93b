// The programs that our own start: where they are, a child process that runs one, and the end of
// its log.
#ifndef THERMOCLINE_COMMON_PROCESS_CHILD_PROCESS_H_
#define THERMOCLINE_COMMON_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/process/memory_kills.h"
#include "common/process/process_guard.h"

namespace thermocline {

// The path of this program, by which others may start it; "": not known. A package's wrapper
// (deploy/package.sh) names itself in $THERMOCLINE_PROGRAM.
std::string ThisProgram();

// The path of `name` ("thermocline-server"): in `bin_dir` if that is given, else beside this
// program, else where the build leaves it. Errors: kNotFound (names the places it looked at).
absl::StatusOr<std::string> FindProgram(absl::string_view name, const std::string& bin_dir);

// The absolute path of a command's program, as a shell finds it: `program` has a "/" and is a path
// from `directory` ("": this process's), or is the name of a file in a folder of $PATH.
// Errors: kNotFound (there is no such file; names the folders of $PATH), kPermissionDenied (the
// file may not be run).
absl::StatusOr<std::string> FindCommand(const std::string& program, const std::string& directory);

// `text` with a "?" for each byte that is no part of UTF-8. Programs write what they like to their
// logs, and a message between hosts that holds anything else can't be read.
std::string ValidUtf8(absl::string_view text);

// The last lines, at most `max_lines`, of what a file holds after its first `begin` bytes. Each is
// cut at 2000 bytes, and valid UTF-8. Reads the last 64 KiB only. Empty where the file can't be
// read. `end` gets the size that the file had.
std::vector<std::string> LogTail(const std::string& path, int max_lines, uint64_t begin = 0,
                                 uint64_t* end = nullptr);
// The last 15 of these lines as an error shows them, each after "\n  | ".
std::string QuoteLogTail(const std::string& path, uint64_t begin = 0);
// The whole lines behind the first *offset bytes, as many as 64 KiB hold, cut and valid as above;
// *offset moves behind them.
std::vector<std::string> NewLogLines(const std::string& path, uint64_t* offset);

// A copy of `fd`, which is closed, beyond the file descriptors that a child gets by number (0 to
// 3). Children inherit it where `is_inherited`. -1, and errno: there is none.
int MoveHigh(int fd, bool is_inherited);
// A file in memory, which children open by its number: /proc/self/fd/N. -1, and errno: none.
int MakeMemoryFile(const char* name);

struct ChildProcessOptions {
  std::string name;                  // for messages: "server 0"
  std::vector<std::string> command;  // program, then its arguments
  std::string log_path;              // standard output and error are appended here; "": they are
                                     // those of this process
  int inherited_fd = -1;             // given to the child as file descriptor 3; -1: none
  bool ignores_term = false;         // it begins with SIGTERM ignored

  std::vector<std::string> environment = {};  // "NAME=VALUE", beside this process's own or in place
                                              // of it
  std::string fd_variable = {};  // an environment variable that gets "3:PID", the inherited
                                 // descriptor and the child's own process; "": none
  std::string directory = {};    // its working directory; "": this process's
  bool closes_others = false;    // it inherits no descriptor beyond 3
  // Below a guard (process_guard.h) that ends all that the child has started, when the child or
  // this process ends. Where this process is a reaper (PR_SET_CHILD_SUBREAPER), the ended child
  // stays its child, and the caller waits for it.
  bool is_guarded = false;
};

// A program that runs in a process group of its own. It dies with this process, however that ends.
// Not thread-safe. Movable.
class ChildProcess {
 public:
  // REQUIRES: called on the main thread (the kernel ties the child's life to the thread that
  // forks). Errors: kNotFound or kPermissionDenied (the program can't be run, the directory can't
  // be entered), kUnavailable (no log file, no process); name the child.
  static absl::StatusOr<ChildProcess> Start(const ChildProcessOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills the group of a child that still runs, and waits for its end: kKilledPatience, and as long
  // again for that of a guard. A child that hangs in the kernel longer is named in the log.
  ~ChildProcess();

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  // The size of the log in bytes when the child started: earlier processes wrote that much.
  uint64_t log_begin() const { return log_begin_; }
  pid_t pid() const { return pid_; }
  // The process whose end is the child's for this one: the child, or its guard.
  pid_t waited_pid() const { return waited_pid_; }

  // Asks the system, without waiting, whether the child has ended, and remembers its end. A guarded
  // child has ended once nothing is left of what it had started; a guard that was killed takes its
  // child with it.
  bool HasEnded();
  // What the last call of HasEnded() found.
  bool ended() const { return ended_; }
  // REQUIRES: ended(). One of the two: the code with which it ended, or the signal that killed it.
  std::optional<int> exit_code() const;
  std::optional<int> signal() const;
  // REQUIRES: ended(). "exited with code 3", "was killed by signal 9 (Killed)"; with that the
  // kernel killed processes for want of memory since it started, where it did.
  std::string DescribeEnd() const;
  // REQUIRES: ended(). Whether it was killed, and DescribeEnd() says so of the kernel.
  bool lacked_memory() const { return !want_of_memory_.empty(); }

  // Sends a signal to the child and to all that it started. Does nothing once it has ended.
  void Signal(int signal);

 private:
  ChildProcess(const ChildProcessOptions& options, uint64_t log_begin, pid_t pid, pid_t waited_pid,
               int guard_fd)
      : options_(options),
        log_begin_(log_begin),
        pid_(pid),
        waited_pid_(waited_pid),
        guard_fd_(guard_fd),
        kills_before_(CountMemoryKills()) {}
  // Waits for the child's end, at most kKilledPatience. Returns HasEnded().
  bool AwaitKill();

  ChildProcessOptions options_;
  uint64_t log_begin_ = 0;  // Bytes.
  pid_t pid_ = -1;          // -1: moved from
  pid_t waited_pid_ = -1;
  int guard_fd_ = -1;  // Its closing lets the guard kill the child; -1: there is no guard.
  bool ended_ = false;
  int wait_status_ = 0;
  MemoryKills kills_before_;
  std::string want_of_memory_;  // As its end was seen.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_PROCESS_CHILD_PROCESS_H_
