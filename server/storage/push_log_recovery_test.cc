// What a replay makes of the segments that a death leaves: torn ends, lost names, damage.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/testing/push_log_fixture.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PushLogRecoveryTest : public PushLogTest {};

TEST_F(PushLogRecoveryTest, AnEmptyFolderIsAnEmptyLog) {
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->history.last, kNoLsn);
  // Started, and never written to: what came before is not forgotten.
  Start({Lsn(41), Step(7)}).reset();
  const auto again = Replay(Step(7));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->history.last, Lsn(41));
  EXPECT_EQ(again->history.newest, Step(7));
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(42))));
  Start(again->history);
  EXPECT_EQ(Replay(Step(6)).status().code(), absl::StatusCode::kDataLoss);
}

// A segment without a record may be all that says how far the log had come.
TEST_F(PushLogRecoveryTest, ARecoveryThatIsCutShortForgetsNothing) {
  {
    const auto log = Start({}, 200);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
    ASSERT_TRUE(log->DropThroughStep(Step(99)).ok());
  }
  ASSERT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(5))));
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

// The end of a segment goes to the medium when the next one is written already.
class TwoUnsyncedSegmentsTest : public PushLogRecoveryTest {
 protected:
  // Records 1 to 3 in the first segment, 4 and 5 in the second; of `first` and `second` the bytes.
  // None but the first two records is known to be synced.
  void Write(std::string* first, std::string* second) {
    BusyDisk disk;
    ASSERT_TRUE(disk.CreateDirectory(kLogFolder).ok());
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
        *first = disk.Content(absl::StrCat(kLogFolder, "/", Name(Lsn(1))));
        *second = disk.Content(absl::StrCat(kLogFolder, "/", Name(Lsn(3))));
      }
    };
    ASSERT_TRUE(log->EndFullSegment().ok());
    ASSERT_FALSE(second->empty());
  }
  void SetSegments(const std::string& first, const std::string& second) {
    for (const auto& [name, bytes] : {std::pair(Name(Lsn(1)), first), {Name(Lsn(3)), second}}) {
      const std::string path = absl::StrCat(kLogFolder, "/", name);
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
    EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(1))));
    EXPECT_EQ(*Start(replayed->history)->Append(1, Step(2), {"another"}), Lsn(3));
    ASSERT_TRUE(disk_.Remove(absl::StrCat(kLogFolder, "/", Name(Lsn(3)))).ok());
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
    EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(1))));
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
      EXPECT_EQ(disk_.Content(absl::StrCat(kLogFolder, "/", Name(Lsn(3)))), behind);
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

TEST_F(PushLogRecoveryTest, AReplayedLogGoesOnAndDropsOldSegments) {
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
  EXPECT_EQ(disk_.List(kLogFolder)->front(), Name(Lsn(3)));
  ASSERT_TRUE(log->DropThroughStep(Step(2)).ok());  // The record written since is of step 2 too.
  EXPECT_THAT(*disk_.List(kLogFolder), ElementsAre(Name(Lsn(6))));
}

TEST_F(PushLogRecoveryTest, AMissingSegmentIsNoticed) {
  const auto log = Start({}, 200);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(Append(log.get(), std::string(60, 'x')).ok());
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kLogFolder, "/", Name(Lsn(3)))).ok());
  const absl::Status gap = Replay(Step(99)).status();
  EXPECT_EQ(gap.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gap.message()), HasSubstr("records 3 to 4 are missing"));
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kLogFolder, "/", Name(Lsn(1)))).ok());
  EXPECT_EQ(Replay(Step(1)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Replay(Step(2)).ok());  // As if it had been dropped.
}

TEST_F(PushLogRecoveryTest, OthersLogsAreRefusedOldGenerationsAreLeftAlone) {
  Start()->Append(1, Step(0), {"old"}).IgnoreError();
  const auto replay = [this](const LogIdentity& identity) {
    return ReplayPushLog(&disk_, kLogFolder, identity, kNoStep, [](const LogRecord&) {
      ADD_FAILURE();
      return kNoStep;
    });
  };
  EXPECT_EQ(replay({JobHash("other"), 5, 1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(replay({JobHash("job"), 5, 2}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(replay({JobHash("job"), 6, 1}).ok());
  EXPECT_EQ(disk_.List(kLogFolder)->size(), 1u);
}

TEST_F(PushLogRecoveryTest, ATornEndIsCutAndSaid) {
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

TEST_F(PushLogRecoveryTest, DamageInWhatWasSyncedStopsTheRecovery) {
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
TEST_F(PushLogRecoveryTest, DamageBeforeASegmentThatWasJustBegunStaysDamage) {
  {
    const auto log = Start();
    for (const char* payload : {"one", "two", "three"}) {
      ASSERT_TRUE(Append(log.get(), payload).ok());
    }
  }
  std::string bytes = disk_.Content(OnlyPath());
  bytes[bytes.size() - 8] ^= 1;  // in the last record, which no other claims to be synced
  disk_.SetContent(OnlyPath(), bytes);
  const std::string begun = absl::StrCat(kLogFolder, "/", Name(Lsn(4)));
  ASSERT_TRUE((*disk_.Create(begun))->Append({"half a header"}).ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(Replay().status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(disk_.Content(OnlyPath()), bytes);
    EXPECT_EQ(disk_.Content(begun), "half a header");
  }
}

TEST_F(PushLogRecoveryTest, AVisitorsErrorEndsTheReplay) {
  Start()->Append(1, Step(0), {"x"}).IgnoreError();
  const auto replayed =
      ReplayPushLog(&disk_, kLogFolder, kLogIdentity, kNoStep, [](const LogRecord& record) {
        return absl::InternalError(absl::StrCat(record.where, ": no"));
      });
  EXPECT_EQ(replayed.status().message(), absl::StrCat("'", OnlyPath(), "', offset 64: no"));
}

// Appends, syncs, drops and crashes at random, against a plain list of what was appended.
class RandomLogTest : public PushLogRecoveryTest {
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
    const auto names = disk_.List(kLogFolder);
    for (const std::string& name : *names) {
      ASSERT_TRUE(disk_.Remove(absl::StrCat(kLogFolder, "/", name)).ok());
    }
    Run(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace thermocline
