#include "server/storage/push_log.h"

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/disk/disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/testing/push_log_fixture.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(PushLogTest, GivesBackWhatWasAppended) {
  {
    const auto log = Start();
    EXPECT_EQ(log->last(), kNoLsn);
    EXPECT_EQ(*log->Append(1, Step(0), {"a", "", "bc"}), Lsn(1));
    EXPECT_EQ(*log->Append(1, Step(0), {}), Lsn(2));
    EXPECT_EQ(*log->Append(2, Step(0), {std::string(1000, 'x')}), Lsn(3));
    EXPECT_EQ(log->last(), Lsn(3));
    EXPECT_EQ(log->synced_through(), kNoLsn);
    EXPECT_TRUE(log->Sync().ok());
    EXPECT_EQ(log->synced_through(), Lsn(3));
    EXPECT_EQ(log->bytes(), disk_.Content(OnlyPath()).size());
  }
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_THAT(payloads_, ElementsAre("abc", "", std::string(1000, 'x')));
  EXPECT_EQ(replayed->history.last, Lsn(3));
  EXPECT_EQ(replayed->history.newest, Step(1));
  EXPECT_EQ(replayed->records, 3u);
  EXPECT_EQ(replayed->torn_at, "");
}

TEST_F(PushLogTest, SegmentsFollowEachOtherAndAreDropped) {
  const auto log = Start({}, 200);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'a' + i)).ok());
  EXPECT_EQ(disk_.List(kLogFolder)->size(),
            5u);  // 64 + 2 * 104 bytes each: records 1 and 2, 3 and 4
  EXPECT_EQ(log->synced_through(), Lsn(8));
  ASSERT_TRUE(Replay().ok());
  EXPECT_EQ(payloads_.size(), 10u);
  ASSERT_TRUE(log->DropThroughStep(Step(1)).ok());  // The third segment ends with step 3.
  EXPECT_EQ(disk_.List(kLogFolder)->front(), Name(Lsn(3)));
  ASSERT_TRUE(Replay(Step(1)).ok());
  EXPECT_EQ(payloads_.size(), 8u);
  // What was dropped is missed.
  const absl::Status gap = Replay(Step(0)).status();
  EXPECT_EQ(gap.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gap.message()), HasSubstr("begins with record 3; those before it"));
  EXPECT_EQ(Replay(kNoStep).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PushLogTest, OnlyWhatIsWrittenToIsKept) {
  const auto log = Start({}, 200);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'a' + i)).ok());
  // The last segment is large and ends here; the record of step 4 keeps it.
  ASSERT_TRUE(log->DropThroughStep(Step(3)).ok());
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(7)), Name(Lsn(9)), Name(Lsn(10))));
  EXPECT_EQ(log->synced_through(), Lsn(9));
  // An empty one doesn't end again.
  ASSERT_TRUE(log->DropThroughStep(Step(4)).ok());
  ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(10))));
  EXPECT_EQ(log->bytes(), kSegmentHeaderBytes);
  ASSERT_EQ(*Append(log.get(), "more"), Lsn(10));
  ASSERT_TRUE(Replay(Step(4)).ok());
  EXPECT_THAT(payloads_, ElementsAre("more"));
}

TEST_F(PushLogTest, AppendWaitsForNoOperationButItsWrite) {
  BusyDisk disk;
  ASSERT_TRUE(disk.CreateDirectory(kLogFolder).ok());
  const auto log = *PushLog::Start(&disk, Options(200));
  std::vector<std::string> busy;
  disk.meanwhile = [&](const std::string& operation) {
    busy.push_back(operation);
    const Lsn last = log->last();
    EXPECT_EQ(*log->Append(1, StepOf(last + 1), {"while it is busy"}), last + 1);
    EXPECT_GT(log->bytes(), 0u);
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(log->Append(1, Step(0), {std::string(60, 'x')}).ok());
  ASSERT_TRUE(log->segment_is_full());
  ASSERT_TRUE(log->EndFullSegment().ok());
  EXPECT_THAT(busy, ElementsAre("sync", "create", "sync", "sync", "sync folder"));
  // The records of the first two operations are in the first segment, and are synced.
  EXPECT_EQ(log->last(), Lsn(8));
  EXPECT_EQ(log->synced_through(), Lsn(5));
  EXPECT_THAT(*disk.List(kLogFolder), ElementsAre(Name(Lsn(1)), Name(Lsn(4))));
  busy.clear();
  ASSERT_TRUE(log->Sync().ok());
  EXPECT_EQ(log->synced_through(), Lsn(8));
  ASSERT_TRUE(log->DropThroughStep(StepOf(Lsn(5))).ok());
  EXPECT_THAT(busy, testing::Contains("remove"));
  EXPECT_THAT(*disk.List(kLogFolder), testing::Not(testing::Contains(Name(Lsn(1)))));
  disk.meanwhile = nullptr;
  const Lsn last = log->last();
  uint64_t next = 6;
  const auto replayed = ReplayPushLog(&disk, kLogFolder, kLogIdentity, StepOf(Lsn(5)),
                                      [&](const LogRecord& record) -> absl::StatusOr<Step> {
                                        EXPECT_EQ(record.lsn, Lsn(next++));
                                        return StepOf(record.lsn);
                                      });
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->history.last, last);
}

// Else a host that dies then leaves a log that says nothing of what came before.
TEST_F(PushLogTest, TheSegmentBeforeOneThatIsBeingBegunIsNotDropped) {
  BusyDisk disk;
  ASSERT_TRUE(disk.CreateDirectory(kLogFolder).ok());
  const auto log = *PushLog::Start(&disk, Options(200));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
  absl::Notification removes, begun;
  std::thread dropping;
  int syncs = 0;
  disk.before_remove = [&] {
    if (!removes.HasBeenNotified()) removes.Notify();
    begun.WaitForNotification();
  };
  disk.meanwhile = [&, main = std::this_thread::get_id()](const std::string& operation) {
    if (std::this_thread::get_id() != main || operation != "sync") return;
    if (++syncs != 3) return;  // The third is that of the new segment's header.
    begun.Notify();
    dropping.join();
    EXPECT_THAT(*disk.List(kLogFolder), ElementsAre(Name(Lsn(5)), Name(Lsn(7))));
  };
  dropping = std::thread([&] { EXPECT_TRUE(log->DropThroughStep(Step(99)).ok()); });
  removes.WaitForNotification();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(log->Append(1, Step(3), {std::string(60, 'x')}).ok());
  ASSERT_TRUE(log->EndFullSegment().ok());
  EXPECT_EQ(syncs, 3);
  ASSERT_FALSE(dropping.joinable());
  ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  EXPECT_THAT(*disk.List(kLogFolder), ElementsAre(Name(Lsn(7))));
}

TEST_F(PushLogTest, AFullDiskKeepsASegmentAndIsNoEnd) {
  const auto log = Start({}, 200);
  ASSERT_TRUE(Append(log.get(), std::string(60, 'a')).ok());
  disk_.SetFreeBytes(10);
  ASSERT_TRUE(log->DropThroughStep(Step(5)).ok());
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(1))));
  disk_.SetFreeBytes(1000);
  ASSERT_TRUE(Append(log.get(), "b").ok());
  ASSERT_TRUE(log->DropThroughStep(Step(5)).ok());
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(3))));
}

TEST_F(PushLogTest, AFullDiskRefusesARecordAndLeavesNothingOfIt) {
  const auto log = Start();
  ASSERT_TRUE(log->Append(1, Step(0), {"first"}).ok());
  disk_.SetFreeBytes(100);
  EXPECT_EQ(log->Append(1, Step(0), {std::string(200, 'x')}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*log->Append(1, Step(0), {"small"}), Lsn(2));
  ASSERT_TRUE(Replay().ok());
  EXPECT_THAT(payloads_, ElementsAre("first", "small"));
}

TEST_F(PushLogTest, AFailedWriteOrSyncIsFinal) {
  for (const bool sync : {false, true}) {
    const auto log = Start({Lsn(sync ? 100 : 0), Step(0)});
    ASSERT_TRUE(log->Append(1, Step(0), {"kept"}).ok());
    disk_.FailAfter(0);
    const absl::Status failed = sync ? log->Sync() : log->Append(1, Step(0), {"lost"}).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(log->Append(1, Step(0), {"later"}).status(), failed);
    EXPECT_EQ(log->Sync(), failed);
  }
}

// A file system may write the name of the new segment to the medium before the log takes it back.
// Beside a later segment, a header that was never written reads as damage.
TEST_F(PushLogTest, ASegmentThatTheFullDiskRefusedNeverComesBack) {
  std::mt19937_64 random(1);
  for (int attempt = 0; attempt < 50; ++attempt) {
    BusyDisk disk;
    ASSERT_TRUE(CreateDirectories(&disk, kLogFolder).ok());
    auto log = *PushLog::Start(&disk, Options(200));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
    disk.SetFreeBytes(10);
    disk.meanwhile = [&](const std::string& operation) {
      if (operation != "create") return;
      ASSERT_TRUE(disk.SyncDirectory(kLogFolder).ok());
    };
    ASSERT_TRUE(log->EndFullSegment().ok());
    disk.meanwhile = nullptr;
    disk.SetFreeBytes(1 << 20);
    ASSERT_TRUE(log->Append(1, Step(1), {std::string(60, 'x')}).ok());
    // Syncs the old segment and begins the next; then the host dies.
    disk.DieAfter(1 + attempt % 4);
    EXPECT_EQ(log->EndFullSegment().code(), absl::StatusCode::kUnavailable);
    log.reset();
    disk.CrashHost(&random);
    const auto replayed = ReplayPushLog(&disk, kLogFolder, kLogIdentity, kNoStep,
                                        [](const LogRecord& record) { return StepOf(record.lsn); });
    ASSERT_TRUE(replayed.ok()) << attempt << ": " << replayed.status();
    EXPECT_EQ(replayed->history.last, Lsn(3)) << attempt;
  }
}

TEST(PushLogThreadsTest, AppendsAndSyncsTogether) {
  PosixDisk disk;
  std::string folder = testing::TempDir() + "/log-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  const auto log = *PushLog::Start(&disk, {folder, kLogIdentity, 20000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto lsn = log->Append(1, Step(0), {std::string(100 + t, 'x')});
        ASSERT_TRUE(lsn.ok()) << lsn.status();
        ASSERT_TRUE(log->EndFullSegment().ok());
        if (t % 2 == 0) continue;
        ASSERT_TRUE(log->Sync().ok());
        EXPECT_GE(log->synced_through(), *lsn);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t next = 1;
  const auto replayed =
      ReplayPushLog(&disk, folder, kLogIdentity, kNoStep, [&](const LogRecord& record) {
        EXPECT_EQ(record.lsn, Lsn(next++));
        return kNoStep;
      });
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->records, 400u);
}

const LogIdentity kJournalIdentity = {JobHash("job"), 1, 0};

class LogJournalTest : public testing::Test {
 protected:
  void Start(LogDurability durability) {
    ASSERT_TRUE(CreateDirectories(&disk_, "/log").ok());
    auto log = PushLog::Start(&disk_, {"/log", kJournalIdentity});
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
      ReplayPushLog(&disk_, "/log", kJournalIdentity, kNoStep, [&](const LogRecord& record) {
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
  scheduler_.RunNext();  // The sync that was scheduled finds no log any more.
  EXPECT_EQ(done_.size(), 1u);
}

}  // namespace
}  // namespace thermocline
