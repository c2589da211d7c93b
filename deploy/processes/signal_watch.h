// Signals as a file descriptor: the program's loop learns of Ctrl-C and of dead children by poll.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_SIGNAL_WATCH_H_
#define THERMOCLINE_DEPLOY_PROCESSES_SIGNAL_WATCH_H_

#include <signal.h>

#include <string>

namespace thermocline {

class SignalWatch {
 public:
  // Blocks SIGCHLD and those of SIGINT, SIGTERM and SIGHUP that are not ignored, for this thread
  // and all it starts, and ignores SIGPIPE. The parent process may want a signal ignored: nohup
  // ignores SIGHUP, a shell's `&` SIGINT. SIGCHLD gets its default action, without which children
  // would leave no exit code. REQUIRES: called on the main thread before other threads exist.
  SignalWatch();
  // Takes the pending signals and restores the mask, so that Ctrl-C ends the program.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal waits.
  int fd() const { return fd_; }
  // Takes the signals that wait. After it, stop_requests() is current.
  void Drain();
  // How often SIGINT, SIGTERM or SIGHUP came, and the last of them (0: none).
  int stop_requests() const { return stop_requests_; }
  // How many of them were SIGTERM: an engine sends it, and may start the program again elsewhere.
  int terminations() const { return terminations_; }
  int last_stop_signal() const { return last_stop_signal_; }
  // "stopped by signal 2 (Interrupt)", of the last one. REQUIRES: stop_requests() > 0
  std::string stop_reason() const;

 private:
  sigset_t previous_mask_;
  int fd_ = -1;
  int stop_requests_ = 0;
  int terminations_ = 0;
  int last_stop_signal_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_SIGNAL_WATCH_H_
