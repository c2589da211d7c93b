// Runs the processes of a job on this machine and waits for things to happen, watching all of them:
// no wait outlasts its timeout, a dead process, or Ctrl-C.
#ifndef THERMOCLINE_DEPLOY_RUNNER_SUPERVISOR_H_
#define THERMOCLINE_DEPLOY_RUNNER_SUPERVISOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/stopwatch.h"
#include "deploy/runner/child_process.h"
#include "deploy/runner/signal_watch.h"

namespace thermocline {

// Whether a process may end by itself with code 0 while the job runs.
enum class ProcessRole { kServer, kWorker };

// A process that ended and should not have.
struct ProcessFailure {
  ProcessRole role;
  std::string name;              // "worker 0"
  std::string how_it_ended;      // as HowItEnded
  std::optional<int> exit_code;  // empty: a signal killed it
};

// "was killed by signal 9 (Killed)", "exited with code 1 (the last line of its log)".
std::string HowItEnded(const ChildProcess& ended);

// Not thread-safe; lives on the main thread.
class Supervisor {
 public:
  // `signals` must outlive this object.
  explicit Supervisor(SignalWatch* signals) : signals_(*signals) {}
  // Kills what still runs.
  ~Supervisor() = default;

  // Starts a process. Errors: see ChildProcess::Start.
  absl::Status Start(ProcessRole role, const ChildProcessOptions& options);
  // Starts it `delay` from now, during waits. One that can't be started then fails the wait.
  void StartLater(ProcessRole role, const ChildProcessOptions& options, absl::Duration delay);

  // Calls `reader` with what comes from `fd` during waits, and with "" once at its end. Closes
  // `fd`.
  void ReadFrom(int fd, std::function<void(absl::string_view)> reader);

  // Returns when `done()` is true; it is asked after every event and at least each `period`, and
  // only where nothing has failed. Failures and done() are judged by one look at all processes: one
  // that dies in between counts in the next round.
  // Errors: kAborted (a server ended, or a worker ended with an error: says which, how, and its
  // last log lines), kCancelled (Ctrl-C), kDeadlineExceeded (says `what` was waited for), those of
  // Start (of what StartLater put off).
  absl::Status WaitUntil(const std::function<bool()>& done, absl::Duration timeout,
                         absl::Duration period, absl::string_view what);

  // Who is asked, during waits, about each server that has ended: whether another process was
  // started in its place, so that its end is no failure. Null: nobody.
  using ServerReplacer = std::function<bool(const ChildProcess& ended)>;
  void set_server_replacer(ServerReplacer replacer) { replacer_ = std::move(replacer); }

  // What the last look at the processes found, in WaitUntil or Stop.
  // Servers that ended and were not replaced, then workers that ended with an error. Without those
  // that Stop has stopped.
  std::vector<ProcessFailure> Failures() const;
  // Whether every worker has ended. (One that fails makes WaitUntil fail.)
  bool AllWorkersEnded() const;
  // Whether the process with this name has been started and has not ended.
  bool IsRunning(absl::string_view name) const;

  // Asks the processes of a role to stop (SIGTERM), waits up to `grace`, then kills. Never fails. A
  // second Ctrl-C kills at once. What StartLater put off is not started any more.
  void Stop(ProcessRole role, absl::Duration grace);

 private:
  struct Member {
    ProcessRole role;
    ChildProcess process;
    bool replaced = false;
    bool stopped = false;  // By us.
  };
  struct Later {
    ProcessRole role;
    ChildProcessOptions options;
    absl::Duration due;  // On watch_.
  };
  struct Reader {
    int fd = -1;
    std::function<void(absl::string_view)> callback;
  };

  absl::Status StartWhatIsDue();
  // Sleeps until an event, `timeout`, or the time of a start, then reads signals and pipes.
  void Poll(absl::Duration timeout);
  void Consume(Reader* reader);
  // Looks which processes have ended; nothing else asks the system for that.
  void Observe();
  void ReplaceEndedServers();
  static bool IsFailure(const Member& member);
  // kAborted with every process that failed, servers first.
  absl::Status FailureReport() const;

  SignalWatch& signals_;
  const Stopwatch watch_;
  ServerReplacer replacer_;
  std::deque<Member> members_;  // In the order of their starts; references stay valid.
  std::vector<Later> later_;
  std::vector<Reader> readers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_SUPERVISOR_H_
