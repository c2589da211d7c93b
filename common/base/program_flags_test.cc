#include "common/base/program_flags.h"

#include "absl/flags/flag.h"
#include "gtest/gtest.h"

ABSL_FLAG(int32_t, test_threads, 1, "");
ABSL_FLAG(bool, test_open, false, "");
ABSL_FLAG(std::vector<std::string>, test_servers, {}, "");

namespace thermocline {
namespace {

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
