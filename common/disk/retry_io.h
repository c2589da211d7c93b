// Retries reads while a disk, or the way to it, is in trouble for a moment, and words the errors of
// system calls on files.
#ifndef THERMOCLINE_COMMON_DISK_RETRY_IO_H_
#define THERMOCLINE_COMMON_DISK_RETRY_IO_H_

#include <sys/types.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace thermocline {

// Trouble that lasts longer is reported as kUnavailable.
inline constexpr absl::Duration kIoPatience = absl::Seconds(2);

// Whether a system call that failed with `error` may succeed later: a medium that can't be read
// (EIO), a network file system whose server does not answer, or has been restarted (ESTALE).
bool IsIoTrouble(int error);

// Calls `io`, which returns -1 and sets errno where it fails. Repeats it as long as it fails with
// EINTR, and for kIoPatience, with growing pauses, while IsIoTrouble(errno). Returns the last
// result; errno is the last call's. REQUIRES: a call that failed has changed nothing.
ssize_t RetryIo(absl::FunctionRef<ssize_t()> io,
                absl::FunctionRef<void(absl::Duration)> pause = absl::SleepFor);

// The error of a system call that failed with `error`: "PATH: WHAT: " and the system's words, or
// "PATH: " and those where `what` is empty. kNotFound (ENOENT, ENOTDIR, or a path that can't name a
// file: ELOOP, ENAMETOOLONG), kPermissionDenied (EACCES, EPERM), else kUnavailable.
absl::Status FileError(const std::string& path, absl::string_view what, int error);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_RETRY_IO_H_
