// A program started by this process, in a process group of its own, with its output in a log file.
// It dies with this process, however that ends.
#ifndef THERMOCLINE_DEPLOY_RUNNER_CHILD_PROCESS_H_
#define THERMOCLINE_DEPLOY_RUNNER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

struct ChildProcessOptions {
  std::string name;                  // for messages: "server 0"
  std::vector<std::string> command;  // program, then its arguments
  std::string log_path;              // standard output and error are appended here
  int inherited_fd = -1;             // given to the child as file descriptor 3; -1: none
};

// Not thread-safe. Movable.
class ChildProcess {
 public:
  // REQUIRES: called on the main thread (the kernel ties the child's life to the thread that
  // forks). Errors: kNotFound or kPermissionDenied (the program can't be run), kUnavailable (no log
  // file, no process); name the child.
  static absl::StatusOr<ChildProcess> Start(const ChildProcessOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills the group of a child that still runs.
  ~ChildProcess();

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  // The size of the log when it started: what others wrote before.
  uint64_t log_begin() const { return log_begin_; }
  pid_t pid() const { return pid_; }

  // Asks the system, without waiting, whether the child has ended, and remembers its end.
  bool HasEnded();
  // What the last call of HasEnded() found.
  bool ended() const { return ended_; }
  // REQUIRES: ended(). Whether it ended by itself with code 0.
  bool Succeeded() const { return wait_status_ == 0; }
  // REQUIRES: ended(). Empty where a signal killed it.
  std::optional<int> exit_code() const;
  // REQUIRES: ended(). "exited with code 3", "was killed by signal 9 (Killed)".
  std::string DescribeEnd() const;

  // Sends a signal to the child and all it started. Nothing where it has ended.
  void Signal(int signal);

 private:
  ChildProcess(const ChildProcessOptions& options, uint64_t log_begin, pid_t pid)
      : options_(options), log_begin_(log_begin), pid_(pid) {}

  ChildProcessOptions options_;
  uint64_t log_begin_ = 0;  // Bytes.
  pid_t pid_ = -1;          // -1: moved from
  bool ended_ = false;
  int wait_status_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_CHILD_PROCESS_H_
