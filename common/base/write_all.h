// Writing to a file, a pipe or a socket as a whole.
#ifndef THERMOCLINE_COMMON_BASE_WRITE_ALL_H_
#define THERMOCLINE_COMMON_BASE_WRITE_ALL_H_

#include <unistd.h>

#include <cerrno>

#include "absl/strings/string_view.h"

namespace thermocline {

// Writes all of `text`, however often signals interrupt it. False: errno says why it could not.
inline bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_WRITE_ALL_H_
