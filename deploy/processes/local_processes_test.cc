#include "deploy/processes/local_processes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

class LocalFilesTest : public testing::Test {
 protected:
  LocalFilesTest() {
    std::string name = testing::TempDir() + "/local_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = absl::StrCat(folder_, "/", name);
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string folder_;
};

TEST_F(LocalFilesTest, OnlyWhatServersLeaveIsRemoved) {
  const std::vector<std::string> others = {"server-0 of mine.data", "server-.data",
                                           "server-01.data", "server-0.data.old"};
  for (const std::string& name : others) Write(name + "/file", "precious");
  Write("server-0.data/log", "x");
  Write("server-12.data/rows/CURRENT", "x");
  // Nor does a link lead to what others have.
  fs::create_directory_symlink(folder_ + "/server-.data", folder_ + "/server-1.data");
  const auto directory = RunDirectory::Open(folder_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(RemoveServerData(*directory), absl::OkStatus());
  for (const char* name : {"server-0.data", "server-12.data", "server-1.data"}) {
    EXPECT_FALSE(fs::exists(fs::symlink_status(absl::StrCat(folder_, "/", name)))) << name;
  }
  for (const std::string& name : others) {
    EXPECT_TRUE(fs::exists(absl::StrCat(folder_, "/", name, "/file"))) << name;
  }
}

TEST_F(LocalFilesTest, ThePackagesDigestIsOfWhatItsWrappersStart) {
  JobPrograms programs;
  programs.build = "1.0";
  programs.server = folder_ + "/bin/server";
  programs.worker = folder_ + "/bin/worker";
  for (const char* name : {"server", "worker"}) {
    Write(absl::StrCat("bin/", name), "#!/bin/sh\nexec $package/programs/" + std::string(name));
    Write(absl::StrCat("programs/", name), "ELF");
  }
  const auto first = DigestOfPrograms(programs);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*DigestOfPrograms(programs), *first);
  Write("programs/worker", "ELF of another build");
  EXPECT_NE(*DigestOfPrograms(programs), *first);
  fs::remove(folder_ + "/programs/worker");
  EXPECT_EQ(DigestOfPrograms(programs).status().code(), absl::StatusCode::kUnavailable);
  // A program, or a script, that is none of a package stands for itself.
  for (const char* text : {"ELF", "#!/bin/sh\nexec worker"}) {
    Write("bin/worker", text);
    EXPECT_TRUE(DigestOfPrograms(programs).ok()) << text;
  }
}

}  // namespace
}  // namespace thermocline
