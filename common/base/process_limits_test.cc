#include "common/base/process_limits.h"

#include <sys/resource.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

// Changes the limits of this process: one test.
TEST(ProcessLimitsTest, TheSoftLimitOfOpenFilesIsRaisedToTheHardOne) {
  const rlimit low = {100, 200};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(OpenFileLimit(), 100u);
  EXPECT_EQ(CheckOpenFiles("a server", 100).code(), absl::StatusCode::kFailedPrecondition);
  RaiseOpenFileLimit();
  EXPECT_EQ(OpenFileLimit(), 200u);
  EXPECT_TRUE(CheckOpenFiles("a server", 200 - kFilesBesideConnections).ok());
  const absl::Status over = CheckOpenFiles("a server", 201 - kFilesBesideConnections);
  EXPECT_EQ(over.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(over.message()), HasSubstr("a server needs 201 open files"));
  EXPECT_THAT(std::string(over.message()), HasSubstr("the limit is 200"));
}

}  // namespace
}  // namespace thermocline
