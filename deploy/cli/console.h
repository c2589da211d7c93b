// Text for a reader that may be slow, such as a pager that nobody pages on.
#ifndef THERMOCLINE_DEPLOY_CLI_CONSOLE_H_
#define THERMOCLINE_DEPLOY_CLI_CONSOLE_H_

#include "absl/strings/string_view.h"
#include "deploy/runner/signal_watch.h"

namespace thermocline {

// Writes to a file descriptor and never leaves a request to stop unheard meanwhile.
// Not thread-safe.
class Console {
 public:
  // `signals` must outlive this object; `fd` is not closed.
  Console(int fd, SignalWatch* signals) : fd_(fd), signals_(*signals) {}

  bool is_terminal() const;

  // Writes all of `text`, however long the reader takes. False where it is gone, or where a request
  // to stop came first; one from before the call doesn't count.
  bool Write(absl::string_view text);

  // Writes `text` if there is room for it now; otherwise drops it and returns false.
  // REQUIRES: text.size() <= PIPE_BUF, which is what a pipe that is ready always takes.
  bool TryWrite(absl::string_view text);

 private:
  const int fd_;
  SignalWatch& signals_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CONSOLE_H_
