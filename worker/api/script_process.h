// The process that runs a worker's script, with all processes that the script starts.
#ifndef THERMOCLINE_WORKER_API_SCRIPT_PROCESS_H_
#define THERMOCLINE_WORKER_API_SCRIPT_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"

namespace thermocline {

// From SIGTERM to SIGKILL at a script's end.
inline constexpr absl::Duration kScriptGrace = absl::Seconds(3);

struct ScriptProcessOptions {
  std::vector<std::string> command;  // a program (its path, or its name on PATH), then arguments
  std::string directory;             // its working directory; "": this process's
  // Sets OMP_NUM_THREADS, unless this process's environment has it. 0: does not.
  uint32_t threads = 0;
  absl::Duration grace = kScriptGrace;
};

// The running script. Its environment is this process's with $THERMOCLINE_WORKER
// (script_protocol.h), PYTHONUNBUFFERED=1, and OpenMP threads that wait without long spins, unless
// this process's environment says how they wait; its standard output and error are this process's.
//
// The script runs in a process group of its own, so that a signal to the worker's group is the
// worker's to judge. A guard (common/process/process_guard.h) stands between this process and the
// script. When the script, this object or this process ends, however it ends, the guard ends the
// script with all that it has started: processes of its group, those with a group or a session of
// their own, and daemons. Limits: a process that hangs in the kernel, and the case that both guard
// and worker are killed, which leaves what has left the script's group. A guard that is killed
// takes the script with it; that looks like a script that was killed by SIGKILL.
//
// One at a time; beside it, this process starts no children. Not thread-safe.
class ScriptProcess {
 public:
  // Errors: kNotFound (no such program, which the message names with the PATH that was searched; no
  // such directory), kPermissionDenied (the program may not be run), kUnavailable (no process).
  static absl::StatusOr<std::unique_ptr<ScriptProcess>> Start(const ScriptProcessOptions& options);

  ScriptProcess(const ScriptProcess&) = delete;
  ScriptProcess& operator=(const ScriptProcess&) = delete;
  // Asks a script that still runs to end (SIGTERM to its group), waits for it up to `grace`, then
  // kills it and all that it has started, and waits for their ends (ChildProcess has the limits).
  ~ScriptProcess();

  // This end of the socket pair, which the caller closes; ScriptChannel takes it over.
  // REQUIRES: called once.
  int TakeSocket();
  // Readable once the script has ended, and all that it had started; -1 before Linux 5.3. Valid as
  // long as this object.
  int pidfd() const { return pidfd_; }
  pid_t pid() const { return child_->pid(); }

  // Asks the system, without waiting, whether the script has ended, and all that it had started.
  bool HasEnded();
  // Waits for the script's end, at most so long. Returns HasEnded().
  bool AwaitEnd(absl::Duration limit);
  // REQUIRES: HasEnded() was true. One of the two is set, as in ChildProcess.
  std::optional<int> exit_code() const { return child_->exit_code(); }
  std::optional<int> signal() const { return child_->signal(); }
  // REQUIRES: HasEnded() was true. "exited with code 3", "was killed by signal 9 (Killed)".
  std::string DescribeEnd() const { return child_->DescribeEnd(); }

 private:
  explicit ScriptProcess(absl::Duration grace);
  absl::Status StartChild(const ScriptProcessOptions& options, const std::string& program);
  // Waits for, or kills, children of this process that the script or its guard has left to it.
  void ReapOrphans();
  void KillOrphans();

  const absl::Duration grace_;
  std::vector<pid_t> before_;  // The children that this process had before the script.
  std::optional<ChildProcess> child_;
  int socket_ = -1;  // -1: taken
  int pidfd_ = -1;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_API_SCRIPT_PROCESS_H_
