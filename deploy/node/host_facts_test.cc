#include "deploy/node/host_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace thermocline {
namespace {

using ::testing::HasSubstr;

TEST(CheckOwnerTest, AFolderOfAnotherUserIsRefused) {
  const std::string folder = testing::TempDir() + "/folder";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(CheckOwner(folder, geteuid()), absl::OkStatus());
  // Root's own folders are taken; only root may give one away.
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder.c_str(), 54321, 54321), 0);
  }
  const uid_t us = geteuid() + 1;
  const absl::Status refused = CheckOwner(folder, us);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the folder " + folder + " belongs to user " +
                                           (geteuid() == 0 ? "54321, " : "")));
  EXPECT_TRUE(absl::IsUnavailable(CheckOwner(folder + "/none", us)));
}

}  // namespace
}  // namespace thermocline
