#include "deploy/backends/local/signal_watch.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <initializer_list>

#include "common/check.h"

namespace thermocline {

SignalWatch::SignalWatch() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, number);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);
  fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  CHECK_GE(fd_, 0);
}

SignalWatch::~SignalWatch() { close(fd_); }

void SignalWatch::Drain() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    ++stop_requests_;
    last_stop_signal_ = static_cast<int>(info.ssi_signo);
  }
}

}  // namespace thermocline
