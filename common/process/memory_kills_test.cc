#include "common/process/memory_kills.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace thermocline {
namespace {

class MemoryKillsTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string Since(const MemoryKills& before) {
    return DescribeMemoryKills(before, CountMemoryKills(root_));
  }

  const std::string root_ = testing::TempDir() + "/memory_kills_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MemoryKillsTest, OfACgroupOfVersion1) {
  Write("/proc/self/cgroup", "8:pids:/\n4:memory:/slurm/job_1\n0::/\n");
  const std::string folder = "/sys/fs/cgroup/memory/slurm/job_1/";
  Write(folder + "memory.limit_in_bytes", "1073741824\n");
  Write(folder + "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  Write("/proc/vmstat", "nr_free_pages 1\noom_kill 5\n");
  const MemoryKills before = CountMemoryKills(root_);
  EXPECT_EQ(before.in_cgroup, 2);
  EXPECT_EQ(before.on_machine, 5);
  EXPECT_EQ(Since(before), "");
  Write("/proc/vmstat", "nr_free_pages 1\noom_kill 6\n");
  EXPECT_EQ(Since(before),
            "; meanwhile the kernel killed 1 process of this machine for want of memory");
  Write(folder + "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(Since(before),
            "; meanwhile the kernel killed 2 processes of its cgroup for want of memory (limit: "
            "1073741824 bytes)");
}

TEST_F(MemoryKillsTest, OfACgroupOfVersion2InAContainer) {
  Write("/proc/self/cgroup", "0::/made/elsewhere\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n");
  const MemoryKills before = CountMemoryKills(root_);
  EXPECT_EQ(before.in_cgroup, 0);
  Write("/sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n");
  EXPECT_EQ(Since(before),
            "; meanwhile the kernel killed 1 process of its cgroup for want of memory");
}

TEST_F(MemoryKillsTest, WhereTheKernelSaysNothing) {
  const MemoryKills none = CountMemoryKills(root_);
  EXPECT_FALSE(none.in_cgroup.has_value());
  Write("/proc/vmstat", "oom_kill 6\n");
  EXPECT_EQ(Since(none), "");
}

}  // namespace
}  // namespace thermocline
