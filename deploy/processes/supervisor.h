// The processes of a job on this machine: starts them, sees them end, stops them.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_SUPERVISOR_H_
#define THERMOCLINE_DEPLOY_PROCESSES_SUPERVISOR_H_

#include <signal.h>

#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"
#include "deploy/job/process.h"
#include "deploy/processes/signal_watch.h"

namespace thermocline {

// Decides nothing: the job machine does. Not thread-safe; lives on the main thread.
class Supervisor {
 public:
  // `signals` must outlive this object. `stop_signal` asks a process to end: SIGTERM, or SIGINT;
  // processes then ignore SIGTERM, which an engine sends to all processes of a host at once.
  explicit Supervisor(SignalWatch* signals, int stop_signal = SIGTERM)
      : signals_(*signals), stop_signal_(stop_signal) {}
  // Kills what still runs.
  ~Supervisor();

  // Errors: see ChildProcess::Start.
  absl::Status Start(const ProcessId& id, ChildProcessOptions options);

  // Calls `reader` with what comes from `fd` during Poll, and with "" once at its end. Closes `fd`.
  void ReadFrom(int fd, std::function<void(absl::string_view)> reader);

  // Sleeps until a signal comes (also for a process that ends), there is something to read, or
  // `timeout` is over. Takes the signals.
  void Poll(absl::Duration timeout);

  struct Ended {
    ProcessId id;
    ProcessEnd end;
  };
  // Returns the processes that have ended since the call before, but for those that Stop has
  // stopped, in the order of their starts. One look at all processes finds them.
  std::vector<Ended> TakeEnded();

  // These ask a process to end, or kill it; TakeEnded will return it. They do nothing if it has
  // ended.
  void AskToEnd(const ProcessId& id) { Signal(id, stop_signal_); }
  void Kill(const ProcessId& id) { Signal(id, SIGKILL); }

  // Asks the processes of a role to stop, waits up to `grace`, then kills. Never fails. A
  // second Ctrl-C kills at once. None of them is left, nor seen again.
  void Stop(ProcessRole role, absl::Duration grace);

 private:
  struct Member {
    ProcessId id;
    ChildProcess process;
  };
  struct Reader {
    int fd = -1;
    std::function<void(absl::string_view)> callback;
  };

  void Consume(Reader* reader);
  void Signal(const ProcessId& id, int number);

  SignalWatch& signals_;
  const int stop_signal_;
  std::deque<Member> members_;  // Not returned by TakeEnded yet; in the order of their starts.
  std::vector<Reader> readers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_SUPERVISOR_H_
