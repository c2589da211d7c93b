#include "server/storage/log_journal.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/log_replay.h"
#include "server/storage/push_record.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const LogIdentity kIdentity = {JobHash("job"), 1, 0};

class LogJournalTest : public testing::Test {
 protected:
  void Start(LogDurability durability) {
    ASSERT_TRUE(CreateDirectories(&disk_, "/log").ok());
    auto log = PushLog::Start(&disk_, {"/log", kIdentity});
    ASSERT_TRUE(log.ok()) << log.status();
    journal_ = std::make_unique<LogJournal>(
        *std::move(log), durability, &scheduler_,
        [this](const absl::Status& status) { broken_.push_back(status.code()); },
        [this](absl::string_view line) { lines_.emplace_back(line); });
  }
  static wire::PushChunk Chunk(int64_t step) {
    wire::PushChunk chunk;
    chunk.step = Step(step);
    return chunk;
  }
  void Wait() {
    journal_->WhenDurable([this](const absl::Status& status) { done_.push_back(status.code()); });
  }

  SimulatedDisk disk_;
  VirtualScheduler scheduler_;
  std::vector<absl::StatusCode> broken_, done_;
  std::vector<std::string> lines_;
  std::unique_ptr<LogJournal> journal_;
};

TEST_F(LogJournalTest, ForAProcessAWriteIsEnough) {
  Start(LogDurability::kProcess);
  ASSERT_TRUE(journal_->Append(Chunk(0)).ok());
  Wait();
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kOk));
  EXPECT_EQ(journal_->log().synced_through(), kNoLsn);
  EXPECT_FALSE(scheduler_.RunNext());
}

TEST_F(LogJournalTest, ForAHostOneSyncServesAllWhoWait) {
  Start(LogDurability::kHost);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(journal_->Append(Chunk(i)).ok());
    Wait();
  }
  EXPECT_THAT(done_, IsEmpty());
  ASSERT_TRUE(scheduler_.RunNext());
  EXPECT_EQ(done_.size(), 3u);
  EXPECT_EQ(journal_->log().synced_through(), Lsn(3));
  EXPECT_FALSE(scheduler_.RunNext());
  // What comes later waits for a sync of its own.
  ASSERT_TRUE(journal_->Append(Chunk(3)).ok());
  Wait();
  EXPECT_EQ(done_.size(), 3u);
  ASSERT_TRUE(scheduler_.RunNext());
  EXPECT_EQ(done_.size(), 4u);
  EXPECT_EQ(journal_->log().synced_through(), Lsn(4));
}

TEST_F(LogJournalTest, WhatWasAppendedComesBack) {
  Start(LogDurability::kProcess);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(journal_->Append(Chunk(10 + i)).ok());
  std::vector<int64_t> steps;
  const auto replayed =
      ReplayPushLog(&disk_, "/log", kIdentity, kNoStep, [&](const LogRecord& record) {
        EXPECT_EQ(record.type, kPushChunkRecord);
        const auto chunk = DecodePushRecord(record.payload);
        EXPECT_TRUE(chunk.ok()) << chunk.status();
        steps.push_back(chunk->step.value());
        return chunk->step;
      });
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_THAT(steps, ElementsAre(10, 11, 12, 13, 14));
}

TEST_F(LogJournalTest, AFullDiskIsNoEnd) {
  Start(LogDurability::kProcess);
  EXPECT_EQ(journal_->full(), "");
  disk_.SetFreeBytes(10);
  const absl::Status refused = journal_->Append(Chunk(0));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(journal_->full(), refused.message());
  EXPECT_EQ(journal_->Append(Chunk(0)).code(), absl::StatusCode::kResourceExhausted);
  // Said once, and once more when it goes on.
  EXPECT_THAT(lines_, ElementsAre(HasSubstr(std::string(refused.message()))));
  disk_.SetFreeBytes(1000);
  EXPECT_TRUE(journal_->Append(Chunk(0)).ok());
  EXPECT_EQ(journal_->full(), "");
  EXPECT_TRUE(journal_->Append(Chunk(1)).ok());
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_THAT(lines_[1], HasSubstr("there is room again"));
  EXPECT_THAT(broken_, IsEmpty());
}

TEST_F(LogJournalTest, AFailedWriteOrSyncIsSaidOnceToWhoeverEndsTheProcess) {
  Start(LogDurability::kHost);
  ASSERT_TRUE(journal_->Append(Chunk(0)).ok());
  Wait();
  disk_.FailAfter(0);
  ASSERT_TRUE(scheduler_.RunNext());
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(journal_->Append(Chunk(1)).ok());
  EXPECT_THAT(broken_, ElementsAre(absl::StatusCode::kUnavailable));
}

TEST_F(LogJournalTest, WhoWaitsAtTheEndIsAnswered) {
  Start(LogDurability::kHost);
  ASSERT_TRUE(journal_->Append(Chunk(0)).ok());
  Wait();
  journal_.reset();
  EXPECT_THAT(done_, ElementsAre(absl::StatusCode::kUnavailable));
  scheduler_.RunNext();  // The sync that was scheduled finds nobody.
  EXPECT_EQ(done_.size(), 1u);
}

}  // namespace
}  // namespace thermocline
