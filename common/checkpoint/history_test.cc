#include "common/checkpoint/history.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDirectory[] = "/run/checkpoints";

// A disk whose answers to Link get lost, before or after the link is made.
class LosingDisk : public SimulatedDisk {
 public:
  absl::Status Link(const std::string& from, const std::string& to) override {
    if (losses == 0) return SimulatedDisk::Link(from, to);
    --losses;
    if (is_done_first) SimulatedDisk::Link(from, to).IgnoreError();
    if (is_done_later) late = [this, from, to] { SimulatedDisk::Link(from, to).IgnoreError(); };
    return absl::UnavailableError("the answer was lost");
  }
  absl::Status Remove(const std::string& path) override {
    return is_done_later && losses == 0 && late ? absl::OkStatus() : SimulatedDisk::Remove(path);
  }
  int losses = 0;
  bool is_done_first = false, is_done_later = false;
  std::function<void()> late;
};

class HistoryTest : public testing::Test {
 protected:
  HistoryTest() : random_(TestSeed()) { EXPECT_TRUE(Store()->Prepare().ok()); }

  // A controller.
  std::unique_ptr<CheckpointStore> Store() {
    return std::make_unique<CheckpointStore>(&disk_, kDirectory, [this] { return random_(); });
  }
  static JobState State(uint64_t generation, const std::string& base = "",
                        uint64_t base_generation = 0) {
    JobState state;
    state.set_job_id("j");
    state.set_generation(generation);
    state.set_base_checkpoint(base);
    state.set_base_generation(base_generation);
    return state;
  }
  uint64_t Last() {
    const auto last = Store()->LastRecord();
    EXPECT_TRUE(last.ok()) << last.status();
    return last->has_value() ? (*last)->number() : 0;
  }
  std::unique_ptr<CheckpointStore> Open(uint64_t generation) {
    std::unique_ptr<CheckpointStore> store = Store();
    const absl::Status opened = store->Open(State(generation), Last());
    EXPECT_TRUE(opened.ok()) << opened;
    return store;
  }
  CheckpointManifest Write(uint64_t generation, int64_t step) {
    TestRows rows;
    AddRandomRows(5, static_cast<uint32_t>(step), &random_, &rows);
    return WriteTestCheckpoint(&disk_, kDirectory, {generation, Step(step)}, 1, rows);
  }
  absl::Status Save(CheckpointStore* store, uint64_t generation, int64_t step) {
    return store->Commit(Write(generation, step));
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto list = Store()->List();
    EXPECT_TRUE(list.ok()) << list.status();
    for (const ListedCheckpoint& listed : *list) {
      EXPECT_TRUE(listed.status.ok()) << listed.status;
      names.push_back(absl::StrCat(listed.name, " of ", listed.id.generation));
    }
    return names;
  }
  std::vector<std::string> Files(const std::string& folder) {
    return disk_.List(absl::StrCat(kDirectory, "/", folder))
        .value_or(std::vector<std::string>{"no folder"});
  }

  std::mt19937_64 random_;
  LosingDisk disk_;
};

TEST_F(HistoryTest, SaysWhatHolds) {
  const auto store = Open(1);
  ASSERT_TRUE(Save(store.get(), 1, 9).ok());
  ASSERT_TRUE(Save(store.get(), 1, 19).ok());
  ASSERT_TRUE(store->RemoveUnneeded(1, {}).ok());
  ASSERT_TRUE(store->Open(State(2, "step-000000019", 1), 0).ok());
  JobOutcome outcome;
  outcome.set_what(JobOutcome::STOPPED);
  ASSERT_TRUE(store->End(outcome).ok());
  EXPECT_THAT(Files("HISTORY"), ElementsAre("000000001", "000000002", "000000003", "000000004",
                                            "000000005", "000000006"));
  const HistoryRecord last = **Store()->LastRecord();
  EXPECT_EQ(last.number(), 6u);
  EXPECT_EQ(last.kind(), HistoryRecord::OUTCOME);
  EXPECT_EQ(last.outcome().what(), JobOutcome::STOPPED);
  EXPECT_EQ(last.state().generation(), 2u);
  EXPECT_EQ(last.state().base_checkpoint(), "step-000000019");
  EXPECT_EQ(last.committed_size(), 1);
  EXPECT_EQ(last.retired_size(), 0);
  EXPECT_EQ((*Store()->ReadJobState())->generation(), 2u);
  EXPECT_THAT(Names(), ElementsAre("step-000000019 of 1"));
}

TEST_F(HistoryTest, AManifestCountsOnceItIsCommitted) {
  const auto store = Open(1);
  const CheckpointManifest manifest = Write(1, 9);
  ASSERT_TRUE(WriteWholeFile(&disk_, EncodeManifest(manifest),
                             absl::StrCat(kDirectory, "/step-000000009/MANIFEST-1"))
                  .ok());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(Store()->Load("step-000000009").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store->Commit(manifest).ok());
  EXPECT_TRUE(store->Commit(manifest).ok());  // Again: no record.
  EXPECT_EQ(Last(), 2u);
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1"));
  EXPECT_TRUE(Store()->Load("step-000000009", 1).ok());
  EXPECT_EQ(Store()->Load("step-000000009", 2).status().code(), absl::StatusCode::kNotFound);
}

// Two controllers
// ------------------------------------------------------------------------------------------------

TEST_F(HistoryTest, AControllerThatPausedDecidesNothingAnyMore) {
  const auto old = Open(1);
  ASSERT_TRUE(Save(old.get(), 1, 9).ok());
  ASSERT_TRUE(Save(old.get(), 1, 19).ok());
  const auto now = Open(2);
  const absl::Status late = Save(old.get(), 1, 29);
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("generation 2 stands in"));
  EXPECT_EQ(old->RemoveUnneeded(1, {}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(old->Open(State(3), 0).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(old->End({}).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(old->RemoveEmptyFolders().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1", "step-000000019 of 1"));
  EXPECT_TRUE(now->Look().ok());
  // What it wrote in vain is removed in time, and a manifest of the same step is another file.
  ASSERT_TRUE(Save(now.get(), 2, 29).ok());
  EXPECT_THAT(Files("step-000000029"), Contains("MANIFEST-2"));
  ASSERT_TRUE(now->RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Files("step-000000029"), ElementsAre("MANIFEST-2", "generation-2-server-0.rows"));
  EXPECT_THAT(Names(), ElementsAre("step-000000029 of 2"));
}

TEST_F(HistoryTest, AnotherControllerIsSeenWithoutADecision) {
  const auto old = Open(1);
  EXPECT_TRUE(old->Look().ok());
  Open(2);
  EXPECT_EQ(old->Look().code(), absl::StatusCode::kAborted);
}

TEST_F(HistoryTest, AGenerationBeginsWithWhatWasKnownLast) {
  const auto first = Open(1);
  const uint64_t known = Last();
  ASSERT_TRUE(Save(first.get(), 1, 9).ok());
  const absl::Status late = Store()->Open(State(2), known);
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("meanwhile; start again"));
  EXPECT_TRUE(Store()->Open(State(2), Last()).ok());
}

// The second generation began with an earlier step, and comes to one that it left behind.
TEST_F(HistoryTest, ALaterGenerationTakesThePlaceOfAStepsCheckpoint) {
  const auto store = Open(1);
  ASSERT_TRUE(Save(store.get(), 1, 9).ok());
  ASSERT_TRUE(Save(store.get(), 1, 19).ok());
  ASSERT_TRUE(store->Open(State(2, "step-000000009", 1), 0).ok());
  ASSERT_TRUE(Save(store.get(), 2, 19).ok());
  EXPECT_EQ((*Store()->LastRecord())->retired(0).generation(), 1u);
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1", "step-000000019 of 2"));
  EXPECT_EQ(Store()->Load("step-000000019")->generation(), 2u);
}

// The user may have named an older one, and the generation may go back to it.
TEST_F(HistoryTest, WhatAGenerationBeganWithStaysUntilItHasMadeACheckpoint) {
  const auto store = Open(1);
  ASSERT_TRUE(Save(store.get(), 1, 9).ok());
  ASSERT_TRUE(Save(store.get(), 1, 19).ok());
  ASSERT_TRUE(store->Open(State(2, "step-000000009", 1), 0).ok());
  ASSERT_TRUE(store->RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1", "step-000000019 of 1"));
  ASSERT_TRUE(Save(store.get(), 2, 14).ok());
  ASSERT_TRUE(store->RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000014 of 2"));
}

// The user has removed its folder, or an old folder is shown.
TEST_F(HistoryTest, WhatIsNotSeenIsRetiredUnlessItIsInUse) {
  const auto store = Open(1);
  const CheckpointManifest first = Write(1, 9);
  ASSERT_TRUE(store->Commit(first).ok());
  TestRows rows;
  const CheckpointManifest second =
      WriteTestCheckpoint(&disk_, kDirectory, {1, Step(19)}, 1, rows, &first);
  ASSERT_TRUE(store->Commit(second).ok());
  const std::string manifest = absl::StrCat(kDirectory, "/step-000000019/MANIFEST-1");
  const std::string aside = absl::StrCat(kDirectory, "/aside");
  ASSERT_TRUE(disk_.Rename(manifest, aside).ok());
  EXPECT_EQ(store->RemoveUnneeded(1, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(store->CheckFiles(second).ok());  // It needs those of the first.
  ASSERT_TRUE(disk_.Rename(aside, manifest).ok());
  ASSERT_TRUE(Save(store.get(), 1, 29).ok());
  ASSERT_TRUE(disk_.Remove(absl::StrCat(kDirectory, "/step-000000009/MANIFEST-1")).ok());
  ASSERT_TRUE(store->RemoveUnneeded(2, {}).ok());
  EXPECT_EQ((*Store()->LastRecord())->retired_size(), 1);
  EXPECT_THAT(Names(), ElementsAre("step-000000019 of 1", "step-000000029 of 1"));
}

// Answers that are lost
// ------------------------------------------------------------------------------------------------

TEST_F(HistoryTest, ARecordWhoseAnswerWasLostIsReadBack) {
  const auto store = Open(1);
  disk_.losses = 1;
  disk_.is_done_first = true;
  ASSERT_TRUE(Save(store.get(), 1, 9).ok());
  EXPECT_EQ(Last(), 2u);
  disk_.losses = 1;
  disk_.is_done_first = false;
  ASSERT_TRUE(Save(store.get(), 1, 19).ok());
  EXPECT_EQ(Last(), 3u);
}

TEST_F(HistoryTest, ARecordThatComesLateCountsOnceThereIsAnother) {
  for (const bool comes : {true, false}) {
    SCOPED_TRACE(comes);
    const uint64_t generation = comes ? 1 : 2;
    const auto store = Open(generation);
    const uint64_t before = Last();
    disk_.losses = 3;
    disk_.is_done_later = true;
    bool may_exist = false;
    const CheckpointManifest manifest = Write(generation, 9);
    EXPECT_EQ(store->Commit(manifest, &may_exist).code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(may_exist);
    EXPECT_EQ(Last(), before);
    if (comes) disk_.late();
    disk_.is_done_later = false;
    ASSERT_TRUE(store->End({}).ok());
    disk_.late();  // It may come twice.
    const HistoryRecord last = **Store()->LastRecord();
    EXPECT_EQ(last.kind(), HistoryRecord::OUTCOME);
    EXPECT_EQ(last.number(), before + (comes ? 2 : 1));
    EXPECT_EQ(Counts(last, IdOf(manifest)), comes);
    disk_.late = nullptr;
  }
}

TEST_F(HistoryTest, AFileSystemWithoutLinksIsRefused) {
  class NoLinks : public SimulatedDisk {
   public:
    absl::Status Link(const std::string&, const std::string&) override {
      return absl::FailedPreconditionError("no links");
    }
  } disk;
  CheckpointStore store(&disk, kDirectory);
  ASSERT_TRUE(store.Prepare().ok());
  EXPECT_EQ(store.Open(State(1), 0), absl::FailedPreconditionError("no links"));
}

// Earlier programs
// ------------------------------------------------------------------------------------------------

TEST_F(HistoryTest, TheFolderOfAnEarlierProgramGoesOn) {
  const auto earlier = Store();
  ASSERT_TRUE(Save(earlier.get(), 1, 9).ok());
  CheckpointManifest base = Write(2, 14);
  ASSERT_TRUE(earlier->Commit(base).ok());
  EXPECT_THAT(Files("step-000000014"), Contains("MANIFEST"));
  JobState state = State(2);
  state.set_format_version(kCheckpointFormatVersion);
  const std::string path = absl::StrCat(kDirectory, "/", kJobStateName);
  ASSERT_TRUE(WriteWholeFile(&disk_, EncodeJobState(state), path).ok());
  EXPECT_EQ((*Store()->ReadJobState())->generation(), 2u);
  const auto store = Store();
  ASSERT_TRUE(store->Open(State(3, "step-000000014", 2), 0).ok());
  EXPECT_EQ((*Store()->ReadJobState())->generation(), 3u);
  EXPECT_EQ(disk_.Open(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1", "step-000000014 of 2"));
  // Its manifest is written again where it is.
  base.set_samples(77);
  ASSERT_TRUE(store->Commit(base).ok());
  EXPECT_EQ(Store()->Load("step-000000014", 2)->samples(), 77u);
  ASSERT_TRUE(Save(store.get(), 3, 19).ok());
  ASSERT_TRUE(store->RemoveUnneeded(2, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000014 of 2", "step-000000019 of 3"));
  EXPECT_THAT(Files("step-000000009"), ElementsAre("no folder"));
}

TEST_F(HistoryTest, WithoutItsHistoryAFolderShowsAllThatIsThere) {
  const auto store = Open(1);
  ASSERT_TRUE(Save(store.get(), 1, 9).ok());
  const std::string record = absl::StrCat(kDirectory, "/HISTORY/000000002");
  std::string bytes = disk_.Content(record);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  disk_.SetContent(record, bytes);
  const absl::Status damaged = Store()->List().status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("HISTORY/000000002"));
  for (const std::string& name : Files("HISTORY")) {
    ASSERT_TRUE(disk_.Remove(absl::StrCat(kDirectory, "/HISTORY/", name)).ok());
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000009 of 1"));
}

// Crashes
// ------------------------------------------------------------------------------------------------

TEST_F(HistoryTest, WhatAControllerSawOutlivesTheCrashOfAnother) {
  int found = 0;
  for (uint64_t generation = 1; generation <= 60; ++generation) {
    const auto store = Open(2 * generation);
    const auto step = static_cast<int64_t>(generation);
    const CheckpointManifest manifest = Write(2 * generation, step);
    disk_.DieAfter(static_cast<int>(6 + random_() % 4));
    store->Commit(manifest).IgnoreError();
    disk_.CrashProcess();
    const auto list = Store()->List();
    ASSERT_TRUE(list.ok()) << list.status();
    if (list->empty() || list->back().id.step != Step(step)) continue;
    ++found;
    const auto next = Store();
    ASSERT_TRUE(
        next->Open(State(2 * generation + 1, list->back().name, 2 * generation), Last()).ok());
    disk_.CrashHost(&random_);
    EXPECT_THAT(Names(), Contains(absl::StrCat(list->back().name, " of ", 2 * generation)));
    ASSERT_TRUE(next->RemoveUnneeded(1, {}).ok());
  }
  EXPECT_GT(found, 5);
}

TEST_F(HistoryTest, ACrashLeavesADecisionWholeOrAbsent) {
  int whole = 0, absent = 0;
  for (uint64_t generation = 1; generation <= 100; ++generation) {
    const auto store = Open(generation);
    const auto step = static_cast<int64_t>(generation);
    const CheckpointManifest manifest = Write(generation, step);
    disk_.DieAfter(static_cast<int>(random_() % 12));
    const bool committed = store->Commit(manifest).ok();
    disk_.CrashHost(&random_);
    const auto last = Store()->LastRecord();
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ((*last)->state().generation(), generation);
    const bool there = Counts(**last, IdOf(manifest));
    EXPECT_TRUE(there || !committed);
    Names();  // All that counts is whole.
    ++(there ? whole : absent);
  }
  EXPECT_GT(whole, 5);
  EXPECT_GT(absent, 5);
}

}  // namespace
}  // namespace thermocline
