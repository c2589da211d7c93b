#include "deploy/nodes/shared_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const FolderMark kMark = {"controller-17", "17"};

// The disk of a host that sees the folder in another way.
class OddDisk : public PosixDisk {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    if (is_read_only) return absl::UnavailableError(path + ": Read-only file system");
    return PosixDisk::Create(path);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    if (has_no_links) return absl::FailedPreconditionError("may have no hard links");
    if (replaces_links) return PosixDisk::Rename(from, to);
    if (const auto meanwhile = std::exchange(during_link, nullptr)) meanwhile();
    const absl::Status linked = PosixDisk::Link(from, to);
    return loses_answers ? absl::UnavailableError("no answer") : linked;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (drops_renames) return absl::OkStatus();
    const absl::Status renamed = PosixDisk::Rename(from, to);
    return loses_answers ? absl::NotFoundError("no answer") : renamed;
  }

  bool is_read_only = false, has_no_links = false, replaces_links = false, drops_renames = false;
  bool loses_answers = false;
  std::function<void()> during_link;  // Runs during the first Link.
};

class SharedFolderTest : public testing::Test {
 protected:
  SharedFolderTest() { std::filesystem::remove_all(folder_); }

  absl::Status Test(const std::string& folder) {
    return TestSharedFolder(&host_, {"h2", 7, absl::ZeroDuration()}, "run directory", folder,
                            kMark);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/shared/folder");
  OddDisk controller_, host_;
};

TEST_F(SharedFolderTest, AHostThatSeesTheMarkLeavesNothingBeside) {
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, kMark).ok());
  EXPECT_TRUE(Test(folder_).ok());
  EXPECT_TRUE(Test(folder_).ok());  // Started again.
  EXPECT_EQ(*controller_.List(folder_), std::vector<std::string>{kMark.name});
}

TEST_F(SharedFolderTest, AnotherFolderAtTheSamePathIsNamedWithTheHost) {
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, {kMark.name, "18"}).ok());
  const absl::Status unseen = Test(folder_);
  EXPECT_TRUE(absl::IsFailedPrecondition(unseen));
  EXPECT_THAT(unseen.message(),
              HasSubstr("host h2 does not see the controller's run directory " + folder_));
  EXPECT_TRUE(absl::IsFailedPrecondition(Test(folder_ + "/none")));
}

TEST_F(SharedFolderTest, WhatAHostCannotDoThereIsNamedWithTheHost) {
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, kMark).ok());
  const auto expect = [this](bool OddDisk::*fault, const std::string& why) {
    host_.*fault = true;
    const absl::Status status = Test(folder_);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("host h2 can't use the controller's run directory " + folder_),
                      HasSubstr(why)));
    host_.*fault = false;
  };
  expect(&OddDisk::is_read_only, "Read-only file system");
  expect(&OddDisk::has_no_links, "may have no hard links");
  expect(&OddDisk::drops_renames, "does not see it there");
  expect(&OddDisk::replaces_links, "again, which is there");
}

TEST_F(SharedFolderTest, AnAnswerThatIsLostIsNoFault) {
  controller_.loses_answers = true;
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, kMark).ok());
  controller_.loses_answers = false;
  EXPECT_TRUE(Test(folder_).ok());
}

TEST_F(SharedFolderTest, NodesOfOneNameDoNotDisturbEachOther) {
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, kMark).ok());
  absl::Status other = absl::UnknownError("not tested");
  host_.during_link = [&] {
    other = TestSharedFolder(&controller_, {"h2", 8, absl::ZeroDuration()}, "run directory",
                             folder_, kMark);
  };
  EXPECT_EQ(Test(folder_), absl::OkStatus());
  EXPECT_EQ(other, absl::OkStatus());
  EXPECT_EQ(*controller_.List(folder_), std::vector<std::string>{kMark.name});
}

TEST_F(SharedFolderTest, MarksArePutIntoAllFoldersOrNone) {
  const std::string file = folder_ + "-file";
  std::ofstream(file) << "no folder";
  EXPECT_FALSE(PutMarks(&controller_, {folder_, file + "/checkpoints"}, kMark).ok());
  EXPECT_EQ(*controller_.List(folder_), std::vector<std::string>());
}

TEST_F(SharedFolderTest, AMarkGoesWithWhatKilledNodesHaveLeft) {
  ASSERT_TRUE(PutMarks(&controller_, {folder_}, kMark).ok());
  for (const char* name : {"/controller-17.h2.7", "/controller-17.h3.9.renamed", "/summary.json"}) {
    std::ofstream(folder_ + name) << "left";
  }
  RemoveMark(&controller_, folder_, kMark);
  EXPECT_EQ(*controller_.List(folder_), std::vector<std::string>{"summary.json"});
}

TEST(LookUntilFoundTest, WhatComesLateIsFound) {
  int looks = 0;
  const auto look = [&looks] {
    return ++looks < 3 ? absl::NotFoundError("not yet") : absl::UnavailableError("there, and odd");
  };
  EXPECT_EQ(LookUntilFound(absl::ZeroDuration(), look), absl::NotFoundError("not yet"));
  EXPECT_EQ(LookUntilFound(absl::InfiniteDuration(), look),
            absl::UnavailableError("there, and odd"));
  EXPECT_EQ(looks, 3);
}

TEST_F(SharedFolderTest, TheControllerNeedsLinks) {
  controller_.has_no_links = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(PutMarks(&controller_, {folder_}, kMark)));
}

}  // namespace
}  // namespace thermocline
