#include "deploy/cli/console.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"

namespace thermocline {

bool Console::is_terminal() const { return isatty(fd_) != 0; }

bool Console::Write(absl::string_view text) {
  const int requests = signals_.stop_requests();
  while (!text.empty()) {
    pollfd fds[] = {{fd_, POLLOUT, 0}, {signals_.fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return false;
    if (fds[1].revents != 0) signals_.Drain();
    if (signals_.stop_requests() > requests) return false;
    if (fds[0].revents == 0) continue;
    const ssize_t written = write(fd_, text.data(), text.substr(0, PIPE_BUF).size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool Console::TryWrite(absl::string_view text) {
  CHECK_LE(text.size(), size_t{PIPE_BUF});
  pollfd ready = {fd_, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  return write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace thermocline
