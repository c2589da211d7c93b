#include "server/storage/journal_opener.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/log_format.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/server-0";

class JournalOpenerTest : public testing::Test {
 protected:
  LogJournalOpener Opener(uint64_t segment_bytes = 1 << 20) {
    LogJournalOptions options;
    options.segment_bytes = segment_bytes;
    options.directory = kFolder;
    options.log_line = [this](absl::string_view line) { lines_.emplace_back(line); };
    return LogJournalOpener(&disk_, &scheduler_, options);
  }
  // Opens as a new process would; keeps the steps that came back.
  absl::StatusOr<std::unique_ptr<PushJournal>> Open(LogJournalOpener* opener,
                                                    const JournalSpec& spec) {
    steps_.clear();
    return opener->Open(spec, [&](wire::PushChunk&& chunk) {
      EXPECT_EQ(chunk.header.job_id, spec.job_id);
      EXPECT_EQ(chunk.header.generation, spec.generation);
      steps_.push_back(chunk.step.value());
      return absl::OkStatus();
    });
  }
  static wire::PushChunk Chunk(int64_t step) {
    wire::PushChunk chunk;
    chunk.step = Step(step);
    return chunk;
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
      ASSERT_TRUE((*journal)->Append(Chunk(expected.back())).ok());
    }
    disk_.CrashProcess();
  }
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("replayed 1 records"), HasSubstr("replayed 3 records")));
}

TEST_F(JournalOpenerTest, ANewGenerationStartsEmptyAndRemovesOlderOnes) {
  const auto append = [this](const JournalSpec& spec) {
    LogJournalOpener opener = Opener();
    ASSERT_TRUE((*Open(&opener, spec))->Append(Chunk(1)).ok());
  };
  append({"job", 3, 0, LogDurability::kProcess});
  append({"other", 2, 0, LogDurability::kProcess});
  append({"job", 1, 1, LogDurability::kProcess});
  append({"job", 5, 0, LogDurability::kProcess});  // It removes 3, which is older than 5.
  EXPECT_THAT(*disk_.List(kFolder), ElementsAre(SegmentName({1, Lsn(1)}), SegmentName({2, Lsn(1)}),
                                                SegmentName({5, Lsn(1)})));
  LogJournalOpener opener = Opener();
  const auto journal = Open(&opener, spec_);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_THAT(steps_, IsEmpty());
  EXPECT_THAT(*disk_.List(kFolder),
              ElementsAre(SegmentName({1, Lsn(1)}), SegmentName({2, Lsn(1)}),
                          SegmentName({4, Lsn(1)}), SegmentName({5, Lsn(1)})));
}

TEST_F(JournalOpenerTest, WhatABaseCoversIsSkipped) {
  {
    LogJournalOpener opener = Opener();
    const auto journal = Open(&opener, spec_);
    for (int64_t step = 0; step < 6; ++step) ASSERT_TRUE((*journal)->Append(Chunk(step)).ok());
  }
  JournalSpec spec = spec_;
  spec.base = Step(3);
  LogJournalOpener opener = Opener();
  ASSERT_TRUE(Open(&opener, spec).ok());
  EXPECT_THAT(steps_, ElementsAre(4, 5));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("replayed 2 records")));
}

// A log as the program before this format wrote it: with a part of a push for steps 7 to 8.
TEST_F(JournalOpenerTest, ALogOfAnotherFormatIsRefusedUntilItsGenerationIsOver) {
  const std::string payload = absl::HexStringToBytes(
      "0000000000000000010000000000003f07000000000000000800000000000000"  // rank to last step
      "010000000000000001000000000000000100000000000000"                  // tables, keys, values
      "040000000000000001000000000000000100000000000000"                  // table 4
      "0a00000000000000010000000000003f");                                // key, count, value
  SegmentHeader segment = {{JobHash(spec_.job_id), spec_.generation, spec_.server_index}, Lsn(1)};
  segment.version = 1;
  RecordHeader record;
  record.lsn = Lsn(1);
  record.generation = spec_.generation;
  record.type = kPushChunkRecord;
  const auto segment_bytes = EncodeSegmentHeader(segment);
  const auto record_bytes = EncodeRecordHeader(record, {payload});
  std::string log(segment_bytes.data(), segment_bytes.size());
  log.append(record_bytes.data(), record_bytes.size()).append(payload);
  const std::string path = absl::StrCat(kFolder, "/", SegmentName({spec_.generation, Lsn(1)}));
  ASSERT_TRUE(CreateDirectories(&disk_, kFolder).ok());
  ASSERT_TRUE((*disk_.Create(path))->Append({log}).ok());
  {
    LogJournalOpener opener = Opener();
    const absl::Status opened = Open(&opener, spec_).status();
    EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
    for (const char* said : {"push log of format 1", "format 2", "--resume"}) {
      EXPECT_THAT(std::string(opened.message()), AllOf(HasSubstr(path), HasSubstr(said)));
    }
    EXPECT_THAT(steps_, IsEmpty());
    EXPECT_EQ((*disk_.Open(path))->size(), log.size());
  }
  // The generation after it needs no log: what is left is removed, as of any older one.
  JournalSpec next = spec_;
  ++next.generation;
  LogJournalOpener opener = Opener();
  ASSERT_TRUE(Open(&opener, next).ok());
  EXPECT_THAT(steps_, IsEmpty());
  EXPECT_EQ(disk_.Open(path).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JournalOpenerTest, WhatWasDroppedMustBeCovered) {
  {
    LogJournalOpener opener = Opener(300);
    const auto journal = Open(&opener, spec_);
    for (int64_t step = 0; step < 9; ++step) {
      ASSERT_TRUE((*journal)->Append(Chunk(step)).ok());
      while (scheduler_.RunNext()) {  // Ends full segments.
      }
    }
    const uint64_t bytes = (*journal)->bytes();
    ASSERT_TRUE((*journal)->DropThroughStep(Step(6)).ok());
    EXPECT_LT((*journal)->bytes(), bytes);
  }
  JournalSpec spec = spec_;
  for (const int64_t base : {-1, 3}) {
    spec.base = Step(base);
    LogJournalOpener opener = Opener();
    EXPECT_EQ(Open(&opener, spec).status().code(), absl::StatusCode::kDataLoss);
  }
  spec.base = Step(6);
  LogJournalOpener opener = Opener();
  ASSERT_TRUE(Open(&opener, spec).ok());
  EXPECT_THAT(steps_, ElementsAre(7, 8));
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
    ASSERT_TRUE((*journal)->Append(Chunk(0)).ok());
    disk_.FailAfter(0);
    EXPECT_FALSE((*journal)->Append(Chunk(1)).ok());
  }
  LogJournalOpener opener = Opener();
  ASSERT_TRUE(Open(&opener, spec_).ok());
  EXPECT_THAT(steps_, ElementsAre(0));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("cut a torn end"), HasSubstr("replayed 1 records")));
}

TEST_F(JournalOpenerTest, WhatTheVisitorRefusesStopsTheRecovery) {
  {
    LogJournalOpener opener = Opener();
    ASSERT_TRUE((*Open(&opener, spec_))->Append(Chunk(0)).ok());
  }
  LogJournalOpener opener = Opener();
  const auto journal = opener.Open(
      spec_, [](wire::PushChunk&&) { return absl::InvalidArgumentError("no such table"); });
  EXPECT_EQ(journal.status(), absl::InvalidArgumentError("no such table"));
}

}  // namespace
}  // namespace thermocline
