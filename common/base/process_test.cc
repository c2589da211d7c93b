#include "common/base/process.h"

#include <sys/resource.h>

#include "absl/flags/flag.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int32_t, test_threads, 1, "");
ABSL_FLAG(bool, test_open, false, "");
ABSL_FLAG(std::vector<std::string>, test_servers, {}, "");

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

TEST(ProgramFlags, GoodOnes) {
  EXPECT_EQ(CheckProgramFlags({}), "");
  EXPECT_EQ(CheckProgramFlags({"pull", "--test_threads=3", "-test_threads", "-4", "--test_open",
                               "--notest_open", "--test_open=true", "--test_servers=a:1,b:2", "-",
                               "--", "--whatever"}),
            "");
  EXPECT_EQ(CheckProgramFlags({"--help"}), "");
}

TEST(ProgramFlags, BadOnesAreNamed) {
  EXPECT_EQ(CheckProgramFlags({"--test_threads=1", "--test_thread=1"}),
            "unknown flag --test_thread; --help lists the flags");
  EXPECT_EQ(CheckProgramFlags({"--notest_threads"}),
            "unknown flag --notest_threads; --help lists the flags");
  EXPECT_EQ(CheckProgramFlags({"-x"}), "unknown flag --x; --help lists the flags");
  EXPECT_EQ(CheckProgramFlags({"--test_threads"}), "--test_threads needs a value");
  EXPECT_EQ(CheckProgramFlags({"--test_threads=many"}).rfind("--test_threads is 'many': ", 0), 0u);
  EXPECT_EQ(CheckProgramFlags({"--test_open=perhaps"}).rfind("--test_open is 'perhaps': ", 0), 0u);
}

}  // namespace
}  // namespace thermocline
