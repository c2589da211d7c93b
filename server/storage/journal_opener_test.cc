#include "server/storage/journal_opener.h"

#include <memory>
#include <string>
#include <vector>

#include "common/disk/simulated_disk.h"
#include "common/virtual_scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/server-0";

class JournalOpenerTest : public testing::Test {
 protected:
  LogJournalOpener Opener() {
    LogJournalOptions options;
    options.directory = kFolder;
    options.log_line = [this](absl::string_view line) { lines_.emplace_back(line); };
    return LogJournalOpener(&disk_, &scheduler_, options);
  }
  // Opens as a new process would; keeps the steps that came back.
  absl::StatusOr<std::unique_ptr<PushJournal>> Open(LogJournalOpener* opener,
                                                    const JournalSpec& spec) {
    steps_.clear();
    return opener->Open(spec, [this](wire::PushPart&& part) {
      EXPECT_EQ(part.header.job_id, "job");
      EXPECT_EQ(part.header.epoch, 4u);
      steps_.push_back(part.last_step.value());
      return absl::OkStatus();
    });
  }
  static wire::PushPart Part(int64_t step) {
    wire::PushPart part;
    part.first_step = part.last_step = Step(step);
    return part;
  }

  const JournalSpec spec_ = {"job", 4, 0, LogDurability::kProcess};
  SimulatedDisk disk_;
  VirtualScheduler scheduler_;
  std::vector<int64_t> steps_;
  std::vector<std::string> lines_;
};

TEST_F(JournalOpenerTest, EveryProcessGoesOnWhereTheOneBeforeEnded) {
  std::vector<int64_t> expected;
  for (int64_t process = 0; process < 4; ++process) {
    LogJournalOpener opener = Opener();
    const auto journal = Open(&opener, spec_);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(steps_, expected);
    for (int64_t i = 0; i < process; ++i) {
      expected.push_back(10 * process + i);
      ASSERT_TRUE((*journal)->Append(Part(expected.back())).ok());
    }
    disk_.CrashProcess();
  }
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("replayed 1 records"), HasSubstr("replayed 3 records")));
}

TEST_F(JournalOpenerTest, ANewEpochStartsEmpty) {
  {
    LogJournalOpener opener = Opener();
    ASSERT_TRUE((*Open(&opener, {"job", 3, 0, LogDurability::kProcess}))->Append(Part(1)).ok());
  }
  LogJournalOpener opener = Opener();
  const auto journal = Open(&opener, spec_);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_THAT(steps_, IsEmpty());
}

TEST_F(JournalOpenerTest, TwoProcessesAtOnceAreRefused) {
  LogJournalOpener first = Opener(), second = Opener();
  ASSERT_TRUE(Open(&first, spec_).ok());
  EXPECT_EQ(Open(&second, spec_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JournalOpenerTest, ATornEndIsCutAndSaid) {
  {
    LogJournalOpener opener = Opener();
    const auto journal = Open(&opener, spec_);
    ASSERT_TRUE((*journal)->Append(Part(0)).ok());
    disk_.FailAfter(0);
    EXPECT_FALSE((*journal)->Append(Part(1)).ok());
  }
  LogJournalOpener opener = Opener();
  ASSERT_TRUE(Open(&opener, spec_).ok());
  EXPECT_THAT(steps_, ElementsAre(0));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("cut a torn end"), HasSubstr("replayed 1 records")));
}

TEST_F(JournalOpenerTest, WhatTheVisitorRefusesStopsTheRecovery) {
  {
    LogJournalOpener opener = Opener();
    ASSERT_TRUE((*Open(&opener, spec_))->Append(Part(0)).ok());
  }
  LogJournalOpener opener = Opener();
  const auto journal = opener.Open(
      spec_, [](wire::PushPart&&) { return absl::InvalidArgumentError("no such table"); });
  EXPECT_EQ(journal.status(), absl::InvalidArgumentError("no such table"));
}

}  // namespace
}  // namespace thermocline
