#include "deploy/runner/job_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace thermocline {
namespace {

TEST(BytesOfCheckpointsTest, HistoryIsLeftOut) {
  std::string directory = testing::TempDir() + "/checkpoints-XXXXXX";
  ASSERT_NE(mkdtemp(&directory[0]), nullptr);
  EXPECT_EQ(BytesOfCheckpoints(directory), 0u);
  for (const char* file : {"step-000000009/rows", "step-000000019/rows", "HISTORY/000000001"}) {
    const std::string path = directory + "/" + file;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "0123456789";
  }
  EXPECT_EQ(BytesOfCheckpoints(directory), 20u);
  EXPECT_EQ(BytesOfCheckpoints(directory + "/none"), 0u);
}

}  // namespace
}  // namespace thermocline
