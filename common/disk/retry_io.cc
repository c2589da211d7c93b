#include "common/disk/retry_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

}  // namespace

bool IsIoTrouble(int error) {
  switch (error) {
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ECONNREFUSED:
    case ECONNRESET:
    case ENOTCONN:
    case ESHUTDOWN:
      return true;
    default:
      return false;
  }
}

ssize_t RetryIo(absl::FunctionRef<ssize_t()> io, absl::FunctionRef<void(absl::Duration)> pause) {
  absl::Duration waited, next = kFirstPause;
  for (;;) {
    const ssize_t result = io();
    if (result >= 0) return result;
    const int error = errno;
    if (error == EINTR) continue;
    if (!IsIoTrouble(error) || waited >= kIoPatience) return result;
    pause(next);
    waited += next;
    next = std::min(2 * next, kLongestPause);
  }
}

absl::Status FileError(const std::string& path, absl::string_view what, int error) {
  const std::string message =
      absl::StrCat(path, ": ", what, what.empty() ? "" : ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace thermocline
