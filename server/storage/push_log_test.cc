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
  static absl::StatusOr<Lsn> Append(PushLog* log, const std::string& payload) {
    return log->Append(1, StepOf(log->last() + 1), {payload});
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
  EXPECT_THAT(*disk_.List(kFolder), IsEmpty());
  Start(again->history);
  EXPECT_EQ(Replay(Step(6)).status().code(), absl::StatusCode::kDataLoss);
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

// A removal may take long.
TEST_F(PushLogTest, AppendGoesOnWhileSegmentsAreDropped) {
  class BusyDisk : public SimulatedDisk {
   public:
    absl::Status Remove(const std::string& path) override {
      for (int i = 0; log != nullptr && i < 20; ++i) {
        EXPECT_TRUE(log->Append(1, Step(10 + i), {"while it is removed"}).ok());
      }
      return SimulatedDisk::Remove(path);
    }
    PushLog* log = nullptr;
  };
  BusyDisk disk;
  ASSERT_TRUE(disk.CreateDirectory(kFolder).ok());
  auto log = PushLog::Start(&disk, Options(200));
  ASSERT_TRUE(log.ok()) << log.status();
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE((*log)->Append(1, Step(step), {std::string(100, 'x')}).ok());
  }
  const uint64_t bytes = (*log)->bytes();
  const Lsn last = (*log)->last();
  disk.log = log->get();
  ASSERT_TRUE((*log)->DropThroughStep(Step(3)).ok());
  EXPECT_GT((*log)->last(), last);
  EXPECT_GT((*log)->bytes(), bytes);
  const size_t files = disk.List(kFolder)->size();
  disk.log = nullptr;
  ASSERT_TRUE((*log)->DropThroughStep(Step(8)).ok());
  EXPECT_LT(disk.List(kFolder)->size(), files);
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

TEST_F(PushLogTest, OthersLogsAreRefusedOldEpochsAreLeftAlone) {
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
      switch (random() % 10) {
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
    const bool host = (*random)() % 2 == 0;
    *synced = std::max(*synced, (*log)->synced_through().value());
    log->reset();
    host ? disk_.CrashHost(random) : disk_.CrashProcess();
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

}  // namespace
}  // namespace thermocline
