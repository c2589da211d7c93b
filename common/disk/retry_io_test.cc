#include "common/disk/retry_io.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace thermocline {
namespace {

// A call that fails with each of `errors` once, then returns 7; and its pauses.
struct Script {
  std::vector<int> errors;
  size_t calls = 0;
  std::vector<absl::Duration> pauses;

  ssize_t Run() {
    return RetryIo(
        [this]() -> ssize_t {
          const size_t call = calls++;
          if (call >= errors.size()) return 7;
          errno = errors[call];
          return -1;
        },
        [this](absl::Duration pause) {
          pauses.push_back(pause);
          errno = 0;  // As whatever runs meanwhile may do.
        });
  }
};

TEST(RetryIoTest, TroubleIsWaitedOut) {
  Script script = {{EIO, EINTR, EIO, ESTALE}};
  EXPECT_EQ(script.Run(), 7);
  EXPECT_EQ(script.calls, 5u);
  EXPECT_EQ(script.pauses,
            (std::vector<absl::Duration>{absl::Milliseconds(20), absl::Milliseconds(40),
                                         absl::Milliseconds(80)}));
}

TEST(RetryIoTest, OtherErrorsAreReturnedAtOnce) {
  for (const int error : {ENOENT, EACCES, EINVAL, EBADF, EISDIR, ENOSPC}) {
    Script script = {{EINTR, error}};
    EXPECT_EQ(script.Run(), -1);
    EXPECT_EQ(errno, error);
    EXPECT_EQ(script.calls, 2u);
    EXPECT_TRUE(script.pauses.empty());
  }
}

TEST(RetryIoTest, TroubleThatLastsIsAnError) {
  Script script = {std::vector<int>(1000, EIO)};
  EXPECT_EQ(script.Run(), -1);
  EXPECT_EQ(errno, EIO);
  absl::Duration waited;
  for (const absl::Duration pause : script.pauses) waited += pause;
  EXPECT_GE(waited, kIoPatience);
  EXPECT_LT(waited, kIoPatience + absl::Milliseconds(500));
}

TEST(FileErrorTest, NamesThePathAndWhatFailed) {
  EXPECT_EQ(FileError("/a/b", "cannot open", ENOENT),
            absl::NotFoundError("/a/b: cannot open: No such file or directory"));
  EXPECT_EQ(FileError("/a/b", "", ENOTDIR), absl::NotFoundError("/a/b: Not a directory"));
  EXPECT_EQ(FileError("b", "", ENAMETOOLONG).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileError("b", "", EACCES).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(FileError("b", "", EPERM).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(FileError("b", "", EIO), absl::UnavailableError("b: Input/output error"));
}

}  // namespace
}  // namespace thermocline
