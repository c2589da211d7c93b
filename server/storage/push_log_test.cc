#include "server/storage/push_log.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/posix_disk.h"
#include "common/disk/simulated_disk.h"
#include "common/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/log_replay.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/log";
const LogIdentity kIdentity = {JobHash("job"), 5, 1};

class PushLogTest : public testing::Test {
 protected:
  PushLogTest() { EXPECT_TRUE(disk_.CreateDirectory(kFolder).ok()); }

  PushLogOptions Options(uint64_t segment_bytes = 1 << 20) const {
    return {kFolder, kIdentity, segment_bytes};
  }
  std::unique_ptr<PushLog> Start(Lsn next = Lsn(1), uint64_t segment_bytes = 1 << 20) {
    auto log = PushLog::Start(&disk_, Options(segment_bytes), next);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  absl::StatusOr<ReplayResult> Replay(Lsn after = kNoLsn) {
    payloads_.clear();
    return ReplayPushLog(&disk_, kFolder, kIdentity, after, [this](const LogRecord& record) {
      payloads_.emplace_back(record.payload);
      return absl::OkStatus();
    });
  }
  static std::string Name(Lsn first) { return SegmentName({kIdentity.epoch, first}); }
  std::string OnlyPath() const { return absl::StrCat(kFolder, "/", Name(Lsn(1))); }

  SimulatedDisk disk_;
  std::vector<std::string> payloads_;  // of the last replay
};

TEST_F(PushLogTest, GivesBackWhatWasAppended) {
  {
    const auto log = Start();
    EXPECT_EQ(log->last(), kNoLsn);
    EXPECT_EQ(*log->Append(1, {"a", "", "bc"}), Lsn(1));
    EXPECT_EQ(*log->Append(1, {}), Lsn(2));
    EXPECT_EQ(*log->Append(2, {std::string(1000, 'x')}), Lsn(3));
    EXPECT_EQ(log->last(), Lsn(3));
    EXPECT_EQ(log->synced_through(), kNoLsn);
    EXPECT_TRUE(log->Sync().ok());
    EXPECT_EQ(log->synced_through(), Lsn(3));
    EXPECT_EQ(log->bytes(), disk_.Content(OnlyPath()).size());
  }
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_THAT(payloads_, ElementsAre("abc", "", std::string(1000, 'x')));
  EXPECT_EQ(replayed->last, Lsn(3));
  EXPECT_EQ(replayed->records, 3u);
  EXPECT_EQ(replayed->torn_at, "");
  ASSERT_TRUE(Replay(Lsn(2)).ok());
  EXPECT_THAT(payloads_, ElementsAre(std::string(1000, 'x')));
}

TEST_F(PushLogTest, AnEmptyFolderIsAnEmptyLog) {
  const auto replayed = Replay(Lsn(41));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->last, Lsn(41));
  // Started, and never written to.
  Start(Lsn(42)).reset();
  ASSERT_TRUE(Replay(Lsn(41)).ok());
  EXPECT_THAT(*disk_.List(kFolder), IsEmpty());
  Start(Lsn(42));
}

TEST_F(PushLogTest, SegmentsFollowEachOtherAndAreDropped) {
  const auto log = Start(Lsn(1), 200);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(log->Append(1, {std::string(60, 'a' + i)}).ok());
  EXPECT_EQ(disk_.List(kFolder)->size(), 5u);  // 64 + 2 * 104 bytes each
  EXPECT_EQ(log->synced_through(), Lsn(8));
  ASSERT_TRUE(Replay().ok());
  EXPECT_EQ(payloads_.size(), 10u);
  ASSERT_TRUE(log->DropThrough(Lsn(5)).ok());
  EXPECT_EQ(disk_.List(kFolder)->size(), 3u);
  ASSERT_TRUE(log->DropThrough(Lsn(100)).ok());
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(9))));
  ASSERT_TRUE(Replay(Lsn(8)).ok());
  EXPECT_THAT(payloads_, ElementsAre(std::string(60, 'i'), std::string(60, 'j')));
  // What was dropped is missed.
  const absl::Status gap = Replay(Lsn(7)).status();
  EXPECT_EQ(gap.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gap.message()), HasSubstr("records from 8 on are needed"));
}

TEST_F(PushLogTest, AReplayedLogGoesOnAndDropsOldSegments) {
  {
    const auto log = Start(Lsn(1), 200);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(log->Append(1, {std::string(60, 'a' + i)}).ok());
  }
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok());
  ASSERT_EQ(replayed->segments.size(), 2u);
  const auto log = Start(replayed->last + 1, 200);
  for (const ReplayedSegment& segment : replayed->segments) {
    log->Adopt(segment.first, segment.last, segment.bytes);
  }
  EXPECT_EQ(*log->Append(1, {"more"}), Lsn(5));
  ASSERT_TRUE(log->DropThrough(Lsn(4)).ok());
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(Name(Lsn(5))));
}

TEST_F(PushLogTest, AMissingSegmentIsNoticed) {
  const auto log = Start(Lsn(1), 200);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(log->Append(1, {std::string(60, 'x')}).ok());
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", Name(Lsn(3)))).ok());
  const absl::Status gap = Replay().status();
  EXPECT_EQ(gap.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gap.message()), HasSubstr("records 3 to 4 are missing"));
}

TEST_F(PushLogTest, OthersLogsAreRefusedOldEpochsAreLeftAlone) {
  Start()->Append(1, {"old"}).IgnoreError();
  const auto replay = [this](const LogIdentity& identity) {
    return ReplayPushLog(&disk_, kFolder, identity, kNoLsn, [](const LogRecord&) {
      ADD_FAILURE();
      return absl::OkStatus();
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
  ASSERT_TRUE(log->Append(1, {"first"}).ok());
  disk_.SetFreeBytes(100);
  EXPECT_EQ(log->Append(1, {std::string(200, 'x')}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*log->Append(1, {"small"}), Lsn(2));
  ASSERT_TRUE(Replay().ok());
  EXPECT_THAT(payloads_, ElementsAre("first", "small"));
}

TEST_F(PushLogTest, AFailedWriteOrSyncIsFinal) {
  for (const bool sync : {false, true}) {
    const auto log = Start(Lsn(sync ? 100 : 1));
    ASSERT_TRUE(log->Append(1, {"kept"}).ok());
    disk_.FailAfter(0);
    const absl::Status failed = sync ? log->Sync() : log->Append(1, {"lost"}).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(log->Append(1, {"later"}).status(), failed);
    EXPECT_EQ(log->Sync(), failed);
  }
}

TEST_F(PushLogTest, ATornEndIsCutAndSaid) {
  {
    const auto log = Start();
    ASSERT_TRUE(log->Append(1, {"kept"}).ok());
    ASSERT_TRUE(log->Append(1, {"torn"}).ok());
  }
  const std::string whole = disk_.Content(OnlyPath());
  const size_t kept = whole.size() - RecordBytes(4);
  for (size_t bytes = kept + 1; bytes < whole.size(); ++bytes) {
    disk_.SetContent(OnlyPath(), whole.substr(0, bytes));
    const auto replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_THAT(payloads_, ElementsAre("kept"));
    EXPECT_EQ(replayed->last, Lsn(1));
    EXPECT_EQ(replayed->torn_at, absl::StrCat("'", OnlyPath(), "', offset ", kept));
    EXPECT_EQ(replayed->torn_bytes, bytes - kept);
    EXPECT_EQ(disk_.Content(OnlyPath()).size(), kept);
  }
}

TEST_F(PushLogTest, DamageInWhatWasSyncedStopsTheRecovery) {
  {
    const auto log = Start();
    ASSERT_TRUE(log->Append(1, {"one"}).ok());
    ASSERT_TRUE(log->Append(1, {"two"}).ok());
    ASSERT_TRUE(log->Sync().ok());
    ASSERT_TRUE(log->Append(1, {"three, which knows that two was synced"}).ok());
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

TEST_F(PushLogTest, AVisitorsErrorEndsTheReplay) {
  Start()->Append(1, {"x"}).IgnoreError();
  const auto replayed =
      ReplayPushLog(&disk_, kFolder, kIdentity, kNoLsn, [](const LogRecord& record) {
        return absl::InternalError(absl::StrCat(record.where, ": no"));
      });
  EXPECT_EQ(replayed.status().message(), absl::StrCat("'", OnlyPath(), "', offset 64: no"));
}

TEST(PushLogThreadsTest, AppendsAndSyncsTogether) {
  PosixDisk disk;
  std::string folder = testing::TempDir() + "/log-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  const auto log = *PushLog::Start(&disk, {folder, kIdentity, 20000}, Lsn(1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto lsn = log->Append(1, {std::string(100 + t, 'x')});
        ASSERT_TRUE(lsn.ok()) << lsn.status();
        if (t % 2 == 0) continue;
        ASSERT_TRUE(log->Sync().ok());
        EXPECT_GE(log->synced_through(), *lsn);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t next = 1;
  const auto replayed =
      ReplayPushLog(&disk, folder, kIdentity, kNoLsn, [&](const LogRecord& record) {
        EXPECT_EQ(record.lsn, Lsn(next++));
        return absl::OkStatus();
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
    std::unique_ptr<PushLog> log = Start(Lsn(1), log_bytes());
    std::vector<std::string> appended;  // record i + 1
    uint64_t synced = 0, dropped = 0;
    for (int i = 0; i < 200; ++i) {
      switch (random() % 10) {
        case 0:
          ASSERT_TRUE(log->Sync().ok());
          synced = appended.size();
          break;
        case 1:
          dropped = std::max(dropped, random() % (synced + 1));
          ASSERT_TRUE(log->DropThrough(Lsn(dropped)).ok());
          break;
        case 2: {
          const bool host = random() % 2 == 0;
          synced = std::max(synced, log->synced_through().value());
          log.reset();
          host ? disk_.CrashHost(&random) : disk_.CrashProcess();
          const auto replayed = Replay(Lsn(dropped));
          ASSERT_TRUE(replayed.ok()) << replayed.status();
          ASSERT_EQ(replayed->last, Lsn(dropped + payloads_.size()));
          ASSERT_GE(replayed->last.value(), host ? synced : appended.size());
          ASSERT_LE(replayed->last.value(), appended.size());
          appended.resize(replayed->last.value());
          ASSERT_TRUE(std::equal(payloads_.begin(), payloads_.end(),
                                 appended.begin() + static_cast<int64_t>(dropped)));
          synced = appended.size();
          log = Start(replayed->last + 1, log_bytes());
          for (const ReplayedSegment& segment : replayed->segments) {
            log->Adopt(segment.first, segment.last, segment.bytes);
          }
          break;
        }
        default:
          appended.push_back(std::string(random() % 1500, static_cast<char>('a' + i % 26)));
          ASSERT_EQ(*log->Append(1, {appended.back()}), Lsn(appended.size()));
      }
    }
  }
};

TEST_F(RandomLogTest, LosesNothingThatWasSyncedAndInventsNothing) {
  const uint64_t first = TestSeed(1);
  for (uint64_t seed = first; seed < first + 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed));
    const auto names = disk_.List(kFolder);
    for (const std::string& name : *names) {
      ASSERT_TRUE(disk_.Remove(absl::StrCat(kFolder, "/", name)).ok());
    }
    Run(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace thermocline
