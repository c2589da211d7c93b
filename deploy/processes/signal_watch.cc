#include "deploy/processes/signal_watch.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {

namespace {

bool IsIgnored(int number) {
  struct sigaction action;
  CHECK_EQ(sigaction(number, nullptr, &action), 0);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalWatch::SignalWatch() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!IsIgnored(number)) sigaddset(&signals, number);
  }
  signal(SIGCHLD, SIG_DFL);
  sigaddset(&signals, SIGCHLD);
  signal(SIGPIPE, SIG_IGN);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, &previous_mask_), 0);
  fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  CHECK_GE(fd_, 0);
}

SignalWatch::~SignalWatch() {
  Drain();
  close(fd_);
  CHECK_EQ(pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr), 0);
}

std::string SignalWatch::stop_reason() const {
  return absl::StrCat("stopped by signal ", last_stop_signal_, " (", strsignal(last_stop_signal_),
                      ")");
}

void SignalWatch::Drain() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    ++stop_requests_;
    if (info.ssi_signo == SIGTERM) ++terminations_;
    last_stop_signal_ = static_cast<int>(info.ssi_signo);
  }
}

}  // namespace thermocline
