#include "deploy/processes/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/disk/disk.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class RunDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(testing::TempDir(), "/run_directory_test.", getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static std::string ReadAll(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::string root_;
};

TEST_F(RunDirectoryTest, MakesParents) {
  const auto made = RunDirectory::Create(root_ + "/a/b/c", "job", absl::UnixEpoch());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->path(), root_ + "/a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(root_ + "/a/b/c"));
}

TEST_F(RunDirectoryTest, IsForItsUserAloneUnlessTheJobOpensIt) {
  using std::filesystem::perms;
  const auto mode_of = [](const std::string& path) {
    return std::filesystem::status(path).permissions();
  };
  const mode_t before = umask(022);
  for (const auto& [name, readers, folder, file] :
       {std::tuple("owner", Job::OWNER, 0700, 0600), std::tuple("group", Job::GROUP, 0750, 0640),
        std::tuple("everyone", Job::EVERYONE, 0755, 0644)}) {
    umask(022);
    const std::string above = absl::StrCat(root_, "/", name);
    const auto run = RunDirectory::Create(above + "/run", "j", absl::Now(), readers);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(mode_of(above), perms(0755)) << "other runs may lie there";
    EXPECT_EQ(mode_of(run->path()), perms(folder)) << name;
    MakeFilesFor(readers);
    ASSERT_TRUE(run->Write("job.textproto", "x").ok());
    ASSERT_TRUE(RunLock::Take(run->path(), absl::ZeroDuration()).ok());
    EXPECT_EQ(mode_of(run->File("job.textproto")), perms(file)) << name;
    EXPECT_EQ(mode_of(run->File("lock")), perms(file)) << name;
    PosixDisk disk;
    ASSERT_TRUE(CreateDirectories(&disk, run->CheckpointDirectory()).ok());
    ASSERT_TRUE(disk.Create(run->CheckpointDirectory() + "/rows").ok());
    EXPECT_EQ(mode_of(run->CheckpointDirectory()), perms(folder)) << name;
    EXPECT_EQ(mode_of(run->CheckpointDirectory() + "/rows"), perms(file)) << name;
  }
  umask(before);
  // What the user has made keeps its mode.
  std::filesystem::create_directories(root_ + "/own");
  std::filesystem::permissions(root_ + "/own", perms(0755));
  ASSERT_TRUE(RunDirectory::Create(root_ + "/own", "j", absl::Now()).ok());
  EXPECT_EQ(mode_of(root_ + "/own"), perms(0755));
}

TEST_F(RunDirectoryTest, TakesAnEmptyFolderAndNoOther) {
  std::filesystem::create_directories(root_ + "/empty");
  EXPECT_TRUE(RunDirectory::Create(root_ + "/empty", "job", absl::UnixEpoch()).ok());
  std::ofstream(root_ + "/empty/precious") << "data";
  const auto full = RunDirectory::Create(root_ + "/empty", "job", absl::UnixEpoch());
  EXPECT_EQ(full.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("empty is not empty"));
  std::ofstream(root_ + "/file") << "data";
  EXPECT_EQ(RunDirectory::Create(root_ + "/file", "job", absl::UnixEpoch()).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(RunDirectory::Create(root_ + "/file/below", "job", absl::UnixEpoch()).ok());
}

TEST_F(RunDirectoryTest, WhatAFailedStartLeavesIsNoRun) {
  std::filesystem::create_directories(root_ + "/run");
  std::ofstream(root_ + "/run/lock") << "7";
  EXPECT_TRUE(RunDirectory::Create(root_ + "/run", "job", absl::UnixEpoch()).ok());
  std::ofstream(root_ + "/run/job.textproto") << "name: 'j'";
  const auto run = RunDirectory::Create(root_ + "/run", "job", absl::UnixEpoch());
  EXPECT_EQ(run.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(run.status().message()), HasSubstr("--resume"));
}

TEST_F(RunDirectoryTest, TwoRunsInOneSecondDiffer) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root_);
  const auto first = RunDirectory::Create("", "job", absl::UnixEpoch());
  const auto second = RunDirectory::Create("", "job", absl::UnixEpoch());
  std::filesystem::current_path(before);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->path(), StartsWith("runs/job-"));
  EXPECT_EQ(second->path(), first->path() + "-2");
}

TEST_F(RunDirectoryTest, RemovesOnlyWhatItHasMade) {
  std::filesystem::create_directories(root_ + "/theirs");
  for (const char* name : {"/theirs", "/ours"}) {
    const auto run = RunDirectory::Create(root_ + name, "job", absl::UnixEpoch());
    ASSERT_TRUE(run->Write("summary.json", "{}").ok());
    run->RemoveAll();
  }
  EXPECT_TRUE(std::filesystem::exists(root_ + "/theirs/summary.json"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/ours"));
  RunDirectory::Open(root_ + "/theirs")->RemoveAll();
  EXPECT_TRUE(std::filesystem::exists(root_ + "/theirs"));
}

TEST_F(RunDirectoryTest, WritesWholeFiles) {
  const auto made = RunDirectory::Create(root_ + "/run", "job", absl::UnixEpoch());
  ASSERT_TRUE(made->Write("summary.json", "{}").ok());
  ASSERT_TRUE(made->Write("summary.json", "{\"a\": 1}").ok());
  EXPECT_EQ(ReadAll(made->File("summary.json")), "{\"a\": 1}");
  EXPECT_FALSE(std::filesystem::exists(made->File("summary.json.tmp")));
  const absl::Status no_folder = made->Write("no/such/file", "");
  EXPECT_THAT(std::string(no_folder.message()), HasSubstr("no/such/file"));
}

TEST_F(RunDirectoryTest, OpensThatOfAnEarlierRun) {
  const std::string path = root_ + "/earlier_run";
  ASSERT_TRUE(RunDirectory::Create(path, "j", absl::Now())->Write("job.textproto", "x").ok());
  const auto opened = RunDirectory::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->path(), path);
  EXPECT_EQ(RunDirectory::Open(path + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunDirectory::Open(path + "/job.textproto").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(RunDirectoryTest, RemovesFilesByNameAndNoFolders) {
  const auto directory = RunDirectory::Create(root_ + "/to_remove_from", "j", absl::Now());
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::filesystem::create_directories(directory->File("server-0.data"));
  ASSERT_TRUE(directory->Write("server-0.port", "x").ok());
  EXPECT_EQ(directory->Remove("server-0.data").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(directory->Remove("server-0.port").ok());
  EXPECT_TRUE(directory->Remove("server-0.port").ok());
  EXPECT_FALSE(std::filesystem::exists(directory->File("server-0.port")));
}

TEST_F(RunDirectoryTest, WhetherARunHasBegunIsReadAndNotLookedAt) {
  const std::string run = root_ + "/begun";
  std::filesystem::create_directories(run + "/checkpoints/HISTORY");
  EXPECT_EQ(HasBegun(run, absl::ZeroDuration()).value_or(true), false);
  // To stat, a file that can't be reached is none.
  std::filesystem::create_symlink("job.textproto", run + "/job.textproto");
  EXPECT_FALSE(access((run + "/job.textproto").c_str(), F_OK) == 0);
  const auto unknown = HasBegun(run, absl::Milliseconds(1));
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr(run + "/job.textproto"));
  std::filesystem::remove(run + "/job.textproto");
  EXPECT_TRUE(RunDirectory::OpenUnused(run).ok());
  std::ofstream(run + "/job.textproto") << "name: 'j'";
  EXPECT_EQ(HasBegun(run, absl::ZeroDuration()).value_or(false), true);
  EXPECT_EQ(RunDirectory::OpenUnused(run).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(RunDirectory::OpenUnused(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/none"));
}

class RunLockTest : public testing::Test {
 protected:
  RunLockTest() {
    std::string name = testing::TempDir() + "/run_lock_XXXXXX";
    folder_ = mkdtemp(name.data());
  }

  std::string folder_;
};

TEST_F(RunLockTest, OneAtATime) {
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  {
    const auto lock = RunLock::Take(folder_, absl::ZeroDuration());
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_TRUE(RunLock::IsHeld(folder_));
    const auto second = RunLock::Take(folder_, absl::ZeroDuration());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), HasSubstr(folder_));
    char host[256];
    ASSERT_EQ(gethostname(host, sizeof(host)), 0);
    EXPECT_THAT(second.status().message(),
                HasSubstr(absl::StrCat("(process ", getpid(), " on host ", host, ") uses ")));
  }
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  EXPECT_TRUE(RunLock::Take(folder_, absl::ZeroDuration()).ok());
}

TEST_F(RunLockTest, WhoIsWaitedForIsSaidAtOnceAndOnce) {
  std::optional<RunLock> lock = *RunLock::Take(folder_, absl::ZeroDuration());
  std::vector<std::string> said;
  const auto free_it = [&](const std::string& what) {
    said.push_back(what);
    lock.reset();  // The wait ends.
  };
  EXPECT_TRUE(RunLock::Take(folder_, absl::InfiniteDuration(), free_it).ok());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat("another launcher (process ", getpid())));
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat(" uses ", folder_, "; waiting up to ")));
  // Without a wait there is nothing to say.
  EXPECT_TRUE(RunLock::Take(folder_, absl::InfiniteDuration(), free_it).ok());
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(RunLockTest, AFullDiskIsCalledSo) {
  ASSERT_EQ(symlink("/dev/full", (folder_ + "/lock").c_str()), 0);
  const absl::Status full = RunLock::Take(folder_, absl::InfiniteDuration()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(full.message()),
      testing::MatchesRegex("can't lock .*/lock: No space left on device; the disk is full: "
                            ".* has [0-9]+ bytes free.*"));
}

TEST_F(RunLockTest, AChildKeepsIt) {
  std::optional<RunLock> lock = *RunLock::Take(folder_, absl::ZeroDuration());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ready[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", "echo; exec sleep 600", nullptr);
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);  // Its exec has closed what exec closes.
  lock.reset();
  EXPECT_TRUE(RunLock::IsHeld(folder_));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RunLockTest, NoFolder) {
  EXPECT_EQ(RunLock::Take(folder_ + "/none", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(RunLock::IsHeld(folder_ + "/none"));
}

TEST(HotDirectoryTest, IsInTheRunDirectoryUnlessTheJobNamesOne) {
  const std::string path = absl::StrCat(testing::TempDir(), "/hot_directory_test");
  std::filesystem::remove_all(path);
  const auto run = RunDirectory::Create(path, "", absl::Now());
  ASSERT_TRUE(run.ok()) << run.status();
  Job job;
  run->FillHotDirectory(&job);
  EXPECT_FALSE(job.has_calibration()) << "it has no hot rows";
  job.mutable_cache()->set_policy(Cache::STATIC);
  run->FillHotDirectory(&job);
  const std::string own = job.calibration().directory();
  EXPECT_EQ(own, std::filesystem::absolute(path + "/hot").lexically_normal().string());
  std::filesystem::create_directory(own);
  job.mutable_calibration()->set_directory("/no/such/folder");
  run->FillHotDirectory(&job);
  EXPECT_EQ(job.calibration().directory(), "/no/such/folder") << "it is made there";
}

}  // namespace
}  // namespace thermocline
