#include "server/storage/push_log.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/journal_opener.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/log";
const LogIdentity kIdentity = {JobHash("job"), 5, 1};

class PushLogTest : public testing::Test {
 protected:
  PushLogTest() { EXPECT_TRUE(CreateDirectories(&disk_, kFolder).ok()); }

  PushLogOptions Options(uint64_t segment_bytes = 1 << 20) const {
    return {kFolder, kIdentity, segment_bytes};
  }
  std::unique_ptr<PushLog> Start(const LogHistory& history = {}, uint64_t segment_bytes = 1 << 20) {
    auto log = PushLog::Start(&disk_, Options(segment_bytes), history);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  // Record n is of step n / 2.
  absl::StatusOr<ReplayResult> Replay(Step covered = kNoStep) {
    payloads_.clear();
    return ReplayPushLog(&disk_, kFolder, kIdentity, covered, [this](const LogRecord& record) {
      payloads_.emplace_back(record.payload);
      return StepOf(record.lsn);
    });
  }
  static Step StepOf(Lsn lsn) { return Step(static_cast<int64_t>(lsn.value() / 2)); }
  // Ends the segment first where it is full.
  static absl::StatusOr<Lsn> Append(PushLog* log, const std::string& payload) {
    RETURN_IF_ERROR(log->EndFullSegment());
    return log->Append(1, StepOf(log->last() + 1), {payload});
  }
  static std::string Name(Lsn first) { return SegmentName({kIdentity.generation, first}); }
  std::string OnlyPath() const { return absl::StrCat(kFolder, "/", Name(Lsn(1))); }

  SimulatedDisk disk_;
  std::vector<std::string> payloads_;  // of the last replay
};

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

TEST_F(PushLogTest, AnEmptyFolderIsAnEmptyLog) {
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->history.last, kNoLsn);
  // Started, and never written to: what came before is not forgotten.
  Start({Lsn(41), Step(7)}).reset();
  const auto again = Replay(Step(7));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->history.last, Lsn(41));
  EXPECT_EQ(again->history.newest, Step(7));
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(42))));
  Start(again->history);
  EXPECT_EQ(Replay(Step(6)).status().code(), absl::StatusCode::kDataLoss);
}

// A segment without a record may be all that says how far the log had come.
TEST_F(PushLogTest, ARecoveryThatIsCutShortForgetsNothing) {
  {
    const auto log = Start({}, 200);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
    ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  }
  ASSERT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(5))));
  std::mt19937_64 random(1);
  for (int attempt = 0; attempt < 200; ++attempt) {
    disk_.CrashHost(&random);
    disk_.DieAfter(attempt % 8);
    const auto replayed = Replay(Step(99));
    if (!replayed.ok()) {
      ASSERT_EQ(replayed.status().code(), absl::StatusCode::kUnavailable) << replayed.status();
      continue;
    }
    ASSERT_EQ(replayed->history.last, Lsn(4));
    ASSERT_EQ(replayed->history.newest, Step(2));
    PushLog::Start(&disk_, Options(), replayed->history).status().IgnoreError();
  }
  disk_.CrashHost(&random);
  EXPECT_EQ(Replay(Step(1)).status().code(), absl::StatusCode::kDataLoss);
  const auto replayed = Replay(Step(2));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(*Start(replayed->history)->Append(1, Step(3), {"more"}), Lsn(5));
  ASSERT_TRUE(Replay(Step(2)).ok());
  EXPECT_THAT(payloads_, ElementsAre("more"));
}

TEST_F(PushLogTest, SegmentsFollowEachOtherAndAreDropped) {
  const auto log = Start({}, 200);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'a' + i)).ok());
  EXPECT_EQ(disk_.List(kFolder)->size(), 5u);  // 64 + 2 * 104 bytes each: records 1 and 2, 3 and 4
  EXPECT_EQ(log->synced_through(), Lsn(8));
  ASSERT_TRUE(Replay().ok());
  EXPECT_EQ(payloads_.size(), 10u);
  ASSERT_TRUE(log->DropThroughStep(Step(1)).ok());  // The third segment ends with step 3.
  EXPECT_EQ(disk_.List(kFolder)->front(), Name(Lsn(3)));
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
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(7)), Name(Lsn(9)), Name(Lsn(10))));
  EXPECT_EQ(log->synced_through(), Lsn(9));
  // An empty one doesn't end again.
  ASSERT_TRUE(log->DropThroughStep(Step(4)).ok());
  ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(10))));
  EXPECT_EQ(log->bytes(), kSegmentHeaderBytes);
  ASSERT_EQ(*Append(log.get(), "more"), Lsn(10));
  ASSERT_TRUE(Replay(Step(4)).ok());
  EXPECT_THAT(payloads_, ElementsAre("more"));
}

// A disk whose operations take long: records are appended in the middle of them.
class BusyDisk : public SimulatedDisk {
 public:
  // Runs in the middle of every operation but an append, and of none that it brings about itself.
  std::function<void(const std::string& operation)> meanwhile;
  std::function<void()> before_remove;

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, SimulatedDisk::Create(path));
    Run("create");
    return std::make_unique<File>(this, std::move(file));
  }
  absl::Status Remove(const std::string& path) override {
    if (before_remove) before_remove();
    Run("remove");
    return SimulatedDisk::Remove(path);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    Run("sync folder");
    return SimulatedDisk::SyncDirectory(directory);
  }

 private:
  class File : public AppendFile {
   public:
    File(BusyDisk* disk, std::unique_ptr<AppendFile> file) : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(absl::Span<const absl::string_view> pieces) override {
      return file_->Append(pieces);
    }
    absl::Status Sync() override {
      disk_->Run("sync");
      return file_->Sync();
    }
    absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }

   private:
    BusyDisk* const disk_;
    const std::unique_ptr<AppendFile> file_;
  };
  void Run(const std::string& operation) {
    if (!meanwhile || running_) return;
    running_ = true;
    meanwhile(operation);
    running_ = false;
  }
  inline static thread_local bool running_ = false;
};

TEST_F(PushLogTest, AppendWaitsForNoOperationButItsWrite) {
  BusyDisk disk;
  ASSERT_TRUE(disk.CreateDirectory(kFolder).ok());
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
  // Those of the first two operations are in the first segment, and in what is synced.
  EXPECT_EQ(log->last(), Lsn(8));
  EXPECT_EQ(log->synced_through(), Lsn(5));
  EXPECT_THAT(*disk.List(kFolder), ElementsAre(Name(Lsn(1)), Name(Lsn(4))));
  busy.clear();
  ASSERT_TRUE(log->Sync().ok());
  EXPECT_EQ(log->synced_through(), Lsn(8));
  ASSERT_TRUE(log->DropThroughStep(StepOf(Lsn(5))).ok());
  EXPECT_THAT(busy, testing::Contains("remove"));
  EXPECT_THAT(*disk.List(kFolder), testing::Not(testing::Contains(Name(Lsn(1)))));
  disk.meanwhile = nullptr;
  const Lsn last = log->last();
  uint64_t next = 6;
  const auto replayed = ReplayPushLog(&disk, kFolder, kIdentity, StepOf(Lsn(5)),
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
  ASSERT_TRUE(disk.CreateDirectory(kFolder).ok());
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
    if (++syncs != 3) return;  // That of the new segment's header.
    begun.Notify();
    dropping.join();
    EXPECT_THAT(*disk.List(kFolder), ElementsAre(Name(Lsn(5)), Name(Lsn(7))));
  };
  dropping = std::thread([&] { EXPECT_TRUE(log->DropThroughStep(Step(99)).ok()); });
  removes.WaitForNotification();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(log->Append(1, Step(3), {std::string(60, 'x')}).ok());
  ASSERT_TRUE(log->EndFullSegment().ok());
  EXPECT_EQ(syncs, 3);
  ASSERT_FALSE(dropping.joinable());
  ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  EXPECT_THAT(*disk.List(kFolder), ElementsAre(Name(Lsn(7))));
}

// The end of a segment goes to the medium when the next one is written already.
class TwoUnsyncedSegmentsTest : public PushLogTest {
 protected:
  // Records 1 to 3 in the first segment, 4 and 5 in the second; of `first` and `second` the bytes.
  // None but the first two records is known to be synced.
  void Write(std::string* first, std::string* second) {
    BusyDisk disk;
    ASSERT_TRUE(disk.CreateDirectory(kFolder).ok());
    const auto log = *PushLog::Start(&disk, Options(150));
    ASSERT_TRUE(log->Append(1, Step(0), {"one"}).ok());
    ASSERT_TRUE(log->Append(1, Step(1), {"two"}).ok());
    int syncs = 0;
    disk.meanwhile = [&](const std::string& operation) {
      if (operation == "create") {
        ASSERT_TRUE(log->Append(1, Step(1), {"three"}).ok());
      } else if (operation == "sync" && ++syncs == 2) {
        ASSERT_TRUE(log->Append(1, Step(2), {"four"}).ok());
        ASSERT_TRUE(log->Append(1, Step(2), {"five"}).ok());
        *first = disk.Content(absl::StrCat(kFolder, "/", Name(Lsn(1))));
        *second = disk.Content(absl::StrCat(kFolder, "/", Name(Lsn(3))));
      }
    };
    ASSERT_TRUE(log->EndFullSegment().ok());
    ASSERT_FALSE(second->empty());
  }
  void SetSegments(const std::string& first, const std::string& second) {
    for (const auto& [name, bytes] : {std::pair(Name(Lsn(1)), first), {Name(Lsn(3)), second}}) {
      const std::string path = absl::StrCat(kFolder, "/", name);
      disk_.Create(path).status().IgnoreError();  // It may be there.
      disk_.SetContent(path, bytes);
    }
  }
};

TEST_F(TwoUnsyncedSegmentsTest, AnyOfWhatWasntSyncedMayBeLost) {
  std::string first, second;
  Write(&first, &second);
  SetSegments(first, second);
  ASSERT_TRUE(Replay().ok());
  EXPECT_THAT(payloads_, ElementsAre("one", "two", "three", "four", "five"));
  const size_t third = first.size() - RecordBytes(5);
  for (size_t bytes = third; bytes < first.size(); ++bytes) {
    SetSegments(first.substr(0, bytes), second);
    const auto replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << bytes << ": " << replayed.status();
    EXPECT_THAT(payloads_, ElementsAre("one", "two"));
    EXPECT_NE(replayed->torn_at, "");
    EXPECT_EQ(disk_.Content(OnlyPath()).size(), third);
    EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(1))));
    EXPECT_EQ(*Start(replayed->history)->Append(1, Step(2), {"another"}), Lsn(3));
    ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", Name(Lsn(3)))).ok());
  }
  // Any byte of the second segment's header, and records behind it.
  for (size_t byte = 0; byte < kSegmentHeaderBytes; ++byte) {
    std::string torn = second;
    torn[byte] ^= 1;
    SetSegments(first, torn);
    const auto replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << byte << ": " << replayed.status();
    EXPECT_THAT(payloads_, ElementsAre("one", "two", "three"));
    EXPECT_THAT(replayed->torn_at, HasSubstr(Name(Lsn(3))));
    EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(1))));
  }
}

TEST_F(TwoUnsyncedSegmentsTest, WhatWasSyncedIsMissed) {
  std::string first, second;
  Write(&first, &second);
  const auto expect_damage = [&](const std::string& damaged, const std::string& behind) {
    SetSegments(damaged, behind);
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_EQ(Replay().status().code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(disk_.Content(OnlyPath()), damaged);
      EXPECT_EQ(disk_.Content(absl::StrCat(kFolder, "/", Name(Lsn(3)))), behind);
    }
  };
  // The second record was synced before the second segment was made: its name says so.
  std::string damaged = first;
  damaged[kSegmentHeaderBytes + RecordBytes(3) + kRecordHeaderBytes] ^= 1;
  for (const std::string& behind : {second, second.substr(0, 30), std::string()}) {
    expect_damage(damaged, behind);
    expect_damage(first.substr(0, kSegmentHeaderBytes + RecordBytes(3)), behind);
  }
  // So was the third one, as one behind it knows.
  RecordHeader header =
      PeekRecordHeader(absl::string_view(second).substr(kSegmentHeaderBytes + RecordBytes(4)));
  header.synced_through = Lsn(3);
  const auto bytes = EncodeRecordHeader(header, {"five"});
  std::string knows = second;
  knows.replace(kSegmentHeaderBytes + RecordBytes(4), bytes.size(),
                std::string(bytes.data(), bytes.size()));
  damaged = first;
  damaged[first.size() - 8] ^= 1;
  expect_damage(damaged, knows);
  knows[10] ^= 1;  // In its header.
  expect_damage(damaged, knows);
}

TEST_F(PushLogTest, AFullDiskKeepsASegmentAndIsNoEnd) {
  const auto log = Start({}, 200);
  ASSERT_TRUE(Append(log.get(), std::string(60, 'a')).ok());
  disk_.SetFreeBytes(10);
  ASSERT_TRUE(log->DropThroughStep(Step(5)).ok());
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(1))));
  disk_.SetFreeBytes(1000);
  ASSERT_TRUE(Append(log.get(), "b").ok());
  ASSERT_TRUE(log->DropThroughStep(Step(5)).ok());
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(3))));
}

TEST_F(PushLogTest, AReplayedLogGoesOnAndDropsOldSegments) {
  {
    const auto log = Start({}, 200);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'a' + i)).ok());
  }
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok());
  ASSERT_EQ(replayed->history.segments.size(), 2u);
  EXPECT_EQ(replayed->history.segments[0].newest, Step(1));
  EXPECT_EQ(replayed->history.newest, Step(2));
  const auto log = Start(replayed->history, 200);
  EXPECT_EQ(log->bytes(), 2 * (kSegmentHeaderBytes + 2 * 104) + kSegmentHeaderBytes);
  EXPECT_EQ(*Append(log.get(), "more"), Lsn(5));
  ASSERT_TRUE(log->DropThroughStep(Step(1)).ok());
  EXPECT_EQ(disk_.List(kFolder)->front(), Name(Lsn(3)));
  ASSERT_TRUE(log->DropThroughStep(Step(2)).ok());  // The record written since is of step 2 too.
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(6))));
}

TEST_F(PushLogTest, AMissingSegmentIsNoticed) {
  const auto log = Start({}, 200);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", Name(Lsn(3)))).ok());
  const absl::Status gap = Replay(Step(99)).status();
  EXPECT_EQ(gap.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gap.message()), HasSubstr("records 3 to 4 are missing"));
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", Name(Lsn(1)))).ok());
  EXPECT_EQ(Replay(Step(1)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Replay(Step(2)).ok());  // As if it had been dropped.
}

TEST_F(PushLogTest, OthersLogsAreRefusedOldGenerationsAreLeftAlone) {
  Start()->Append(1, Step(0), {"old"}).IgnoreError();
  const auto replay = [this](const LogIdentity& identity) {
    return ReplayPushLog(&disk_, kFolder, identity, kNoStep, [](const LogRecord&) {
      ADD_FAILURE();
      return kNoStep;
    });
  };
  EXPECT_EQ(replay({JobHash("other"), 5, 1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(replay({JobHash("job"), 5, 2}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(replay({JobHash("job"), 6, 1}).ok());
  EXPECT_EQ(disk_.List(kFolder)->size(), 1u);
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

TEST_F(PushLogTest, ATornEndIsCutAndSaid) {
  {
    const auto log = Start();
    ASSERT_TRUE(log->Append(1, Step(0), {"kept"}).ok());
    ASSERT_TRUE(log->Append(1, Step(0), {"torn"}).ok());
  }
  const std::string whole = disk_.Content(OnlyPath());
  const size_t kept = whole.size() - RecordBytes(4);
  for (size_t bytes = kept + 1; bytes < whole.size(); ++bytes) {
    disk_.SetContent(OnlyPath(), whole.substr(0, bytes));
    const auto replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_THAT(payloads_, ElementsAre("kept"));
    EXPECT_EQ(replayed->history.last, Lsn(1));
    EXPECT_EQ(replayed->torn_at, absl::StrCat("'", OnlyPath(), "', offset ", kept));
    EXPECT_EQ(replayed->torn_bytes, bytes - kept);
    EXPECT_EQ(disk_.Content(OnlyPath()).size(), kept);
  }
}

TEST_F(PushLogTest, DamageInWhatWasSyncedStopsTheRecovery) {
  {
    const auto log = Start();
    ASSERT_TRUE(log->Append(1, Step(0), {"one"}).ok());
    ASSERT_TRUE(log->Append(1, Step(0), {"two"}).ok());
    ASSERT_TRUE(log->Sync().ok());
    ASSERT_TRUE(log->Append(1, Step(0), {"three, which knows that two was synced"}).ok());
  }
  const std::string whole = disk_.Content(OnlyPath());
  const size_t synced = kSegmentHeaderBytes + 2 * RecordBytes(3);
  for (size_t byte = 0; byte < synced; ++byte) {
    const size_t in_record = (byte - kSegmentHeaderBytes) % RecordBytes(3);
    if (byte >= kSegmentHeaderBytes && in_record >= kRecordHeaderBytes + 3) continue;  // padding
    std::string damaged = whole;
    damaged[byte] ^= 0x10;
    disk_.SetContent(OnlyPath(), damaged);
    const absl::Status status = Replay().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << byte << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(OnlyPath()));
    EXPECT_EQ(disk_.Content(OnlyPath()), damaged);  // Nothing was cut.
  }
}

// Removing the begun segment first would make the damage look like a torn end the next time.
TEST_F(PushLogTest, DamageBeforeASegmentThatWasJustBegunStaysDamage) {
  {
    const auto log = Start();
    for (const char* payload : {"one", "two", "three"}) {
      ASSERT_TRUE(Append(log.get(), payload).ok());
    }
  }
  std::string bytes = disk_.Content(OnlyPath());
  bytes[bytes.size() - 8] ^= 1;  // in the last record, which no other claims to be synced
  disk_.SetContent(OnlyPath(), bytes);
  const std::string begun = absl::StrCat(kFolder, "/", Name(Lsn(4)));
  ASSERT_TRUE((*disk_.Create(begun))->Append({"half a header"}).ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(Replay().status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(disk_.Content(OnlyPath()), bytes);
    EXPECT_EQ(disk_.Content(begun), "half a header");
  }
}

TEST_F(PushLogTest, AVisitorsErrorEndsTheReplay) {
  Start()->Append(1, Step(0), {"x"}).IgnoreError();
  const auto replayed =
      ReplayPushLog(&disk_, kFolder, kIdentity, kNoStep, [](const LogRecord& record) {
        return absl::InternalError(absl::StrCat(record.where, ": no"));
      });
  EXPECT_EQ(replayed.status().message(), absl::StrCat("'", OnlyPath(), "', offset 64: no"));
}

TEST(PushLogThreadsTest, AppendsAndSyncsTogether) {
  PosixDisk disk;
  std::string folder = testing::TempDir() + "/log-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  const auto log = *PushLog::Start(&disk, {folder, kIdentity, 20000});
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
      ReplayPushLog(&disk, folder, kIdentity, kNoStep, [&](const LogRecord& record) {
        EXPECT_EQ(record.lsn, Lsn(next++));
        return kNoStep;
      });
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->records, 400u);
}

// Appends, syncs, drops and crashes at random, against a plain list of what was appended.
class RandomLogTest : public PushLogTest {
 protected:
  void Run(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto log_bytes = [&] { return 100 + random() % 3000; };
    std::unique_ptr<PushLog> log = Start({}, log_bytes());
    std::vector<std::string> appended;  // record i + 1
    uint64_t synced = 0;
    Step covered = kNoStep;
    for (int i = 0; i < 200; ++i) {
      switch (random() % 12) {
        case 0:
          if (!log->Sync().ok()) {
            Crash(&log, &random, log_bytes(), covered, &synced, &appended);
          }
          synced = appended.size();
          break;
        case 1:
          // A checkpoint covers any step; some of the records may not be synced yet.
          covered = std::max(covered, StepOf(Lsn(random() % (appended.size() + 1))));
          if (random() % 4 == 0) disk_.DieAfter(static_cast<int>(random() % 4));
          if (!log->DropThroughStep(covered).ok()) {
            Crash(&log, &random, log_bytes(), covered, &synced, &appended);
          }
          break;
        case 2:
          if (random() % 4 == 0) disk_.DieAfter(static_cast<int>(random() % 5));
          if (!log->EndFullSegment().ok()) {
            Crash(&log, &random, log_bytes(), covered, &synced, &appended);
          }
          break;
        case 3:
          Crash(&log, &random, log_bytes(), covered, &synced, &appended);
          break;
        default:
          appended.push_back(std::string(random() % 1500, static_cast<char>('a' + i % 26)));
          if (!log->Append(1, StepOf(Lsn(appended.size())), {appended.back()}).ok()) {
            appended.pop_back();
            Crash(&log, &random, log_bytes(), covered, &synced, &appended);
          }
      }
      if (HasFatalFailure()) return;
    }
  }

  void Crash(std::unique_ptr<PushLog>* log, std::mt19937_64* random, uint64_t segment_bytes,
             Step covered, uint64_t* synced, std::vector<std::string>* appended) {
    bool host = (*random)() % 2 == 0;
    *synced = std::max(*synced, (*log)->synced_through().value());
    log->reset();
    host ? disk_.CrashHost(random) : disk_.CrashProcess();
    // Recoveries that are cut short.
    while ((*random)() % 3 == 0) {
      disk_.DieAfter(static_cast<int>((*random)() % 8));
      const auto cut_short = Replay(covered);
      if (cut_short.ok()) {
        PushLog::Start(&disk_, Options(), cut_short->history).status().IgnoreError();
      } else {
        ASSERT_EQ(cut_short.status().code(), absl::StatusCode::kUnavailable) << cut_short.status();
      }
      const bool with_host = (*random)() % 2 == 0;
      with_host ? disk_.CrashHost(random) : disk_.CrashProcess();
      host = host || with_host;
    }
    const auto replayed = Replay(covered);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    const uint64_t last = replayed->history.last.value();
    ASSERT_GE(last, host ? *synced : appended->size());
    ASSERT_LE(last, appended->size());
    // What is missing at the beginning is covered.
    const uint64_t dropped = last - payloads_.size();
    if (dropped > 0) {
      ASSERT_LE(StepOf(Lsn(dropped)), covered);
    }
    appended->resize(last);
    ASSERT_TRUE(std::equal(payloads_.begin(), payloads_.end(),
                           appended->begin() + static_cast<int64_t>(dropped)));
    if (last > 0) {
      ASSERT_EQ(replayed->history.newest, StepOf(Lsn(last)));
    }
    *synced = last;
    *log = Start(replayed->history, segment_bytes);
  }
};

TEST_F(RandomLogTest, LosesNothingThatWasSyncedAndInventsNothing) {
  const uint64_t first = TestSeed(1);
  for (uint64_t seed = first; seed < first + 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed));
    disk_.CrashProcess();  // A failure may still be ordered.
    const auto names = disk_.List(kFolder);
    for (const std::string& name : *names) {
      ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", name)).ok());
    }
    Run(seed);
    if (HasFatalFailure()) return;
  }
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
  scheduler_.RunNext();  // The sync that was scheduled finds nobody.
  EXPECT_EQ(done_.size(), 1u);
}

}  // namespace
}  // namespace thermocline
