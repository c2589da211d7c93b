#include "common/checkpoint/checkpoint_store.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
using ::testing::Not;

constexpr char kDirectory[] = "/run/checkpoints";

// A server may remove a file when the store is about to, or write one.
class SharedDisk : public SimulatedDisk {
 public:
  absl::Status Remove(const std::string& path) override {
    if (on_remove) on_remove(path);
    return SimulatedDisk::Remove(path);
  }
  std::function<void(const std::string& path)> on_remove;
};

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointStoreTest() : random_(TestSeed()) { EXPECT_TRUE(store_.Prepare().ok()); }

  CheckpointManifest Write(uint64_t generation, int64_t step,
                           const CheckpointManifest* base = nullptr) {
    TestRows rows;
    AddRandomRows(20, static_cast<uint32_t>(step), &random_, &rows);
    return WriteTestCheckpoint(&disk_, kDirectory, {generation, Step(step)}, 2, rows, base);
  }
  CheckpointManifest Save(uint64_t generation, int64_t step,
                          const CheckpointManifest* base = nullptr) {
    const CheckpointManifest manifest = Write(generation, step, base);
    const absl::Status committed = store_.Commit(manifest);
    EXPECT_TRUE(committed.ok()) << committed;
    return manifest;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const auto list = store_.List();
    EXPECT_TRUE(list.ok()) << list.status();
    for (const ListedCheckpoint& listed : *list) {
      names.push_back(listed.status.ok() ? listed.name : listed.name + " damaged");
    }
    return names;
  }
  static std::string Path(absl::string_view name) { return absl::StrCat(kDirectory, "/", name); }
  std::vector<std::string> Files(absl::string_view name) {
    return disk_.List(Path(name)).value_or(std::vector<std::string>{"no folder"});
  }
  void Damage(absl::string_view file) {
    std::string bytes = disk_.Content(Path(file));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    disk_.SetContent(Path(file), bytes);
  }

  // As a later version of this program leaves one that builds on `older`.
  void SaveOfAnotherVersion(const CheckpointManifest& older) {
    CheckpointManifest manifest = older;
    manifest.set_step(older.step() + 1);
    manifest.set_format_version(kCheckpointFormatVersion + 1);
    const std::string folder = Path(CheckpointName({older.generation(), Step(manifest.step())}));
    ASSERT_TRUE(disk_.CreateDirectory(folder).ok());
    const std::string bytes = EncodeFrame({kManifestFormat.magic, kCheckpointFormatVersion + 1},
                                          manifest.SerializeAsString());
    ASSERT_TRUE(WriteWholeFile(&disk_, bytes, folder + "/MANIFEST").ok());
  }

  std::mt19937_64 random_;
  SharedDisk disk_;
  CheckpointStore store_{&disk_, kDirectory};
};

TEST_F(CheckpointStoreTest, ACheckpointExistsOnceItsManifestDoes) {
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_FALSE(store_.Newest()->has_value());
  const CheckpointManifest manifest = Write(1, 9);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(store_.Load("epoch-1-step-9").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_.Commit(manifest).ok());
  EXPECT_TRUE(store_.Commit(manifest).ok());
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-9"));
  const auto loaded = store_.Load("epoch-1-step-9");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ((**store_.Newest()).SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ(store_.Load("epoch-1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointStoreTest, ListsByGenerationThenStep) {
  Save(3, 5);
  Save(1, 10);
  Save(2, 9);
  Save(2, 10);
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-10", "epoch-2-step-9", "epoch-2-step-10",
                                   "epoch-3-step-5"));
  const CheckpointStore nowhere(&disk_, "/nowhere");
  EXPECT_EQ(nowhere.List().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointStoreTest, CommitRefusesWhatIsNotThere) {
  CheckpointManifest manifest = Write(1, 9);
  manifest.mutable_shards(1)->mutable_files(0)->set_bytes(5);
  const absl::Status size = store_.Commit(manifest);
  EXPECT_EQ(size.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(size.message()), HasSubstr("epoch-1-step-9/server-1.sst"));
  ASSERT_TRUE(disk_.Remove(Path("epoch-1-step-9/server-1.sst")).ok());
  EXPECT_EQ(store_.Commit(manifest).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointStoreTest, DamageIsListedWithItsReason) {
  Save(1, 1);
  Save(1, 2);
  Save(1, 3);
  Damage("epoch-1-step-1/MANIFEST");
  ASSERT_TRUE(disk_.Truncate(Path("epoch-1-step-3/server-0.sst"), 100).ok());
  EXPECT_THAT(Names(),
              ElementsAre("epoch-1-step-1 damaged", "epoch-1-step-2", "epoch-1-step-3 damaged"));
  const auto list = store_.List();
  EXPECT_EQ((*list)[0].status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*list)[0].status.message()), HasSubstr("epoch-1-step-1/MANIFEST"));
  EXPECT_THAT(std::string((*list)[2].status.message()), HasSubstr("epoch-1-step-3/server-0.sst"));
  const absl::Status newest = store_.Newest().status();
  EXPECT_EQ(newest.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(newest.message()), HasSubstr("epoch-1-step-3/server-0.sst"));
  // A manifest that was copied elsewhere.
  ASSERT_TRUE(disk_.CreateDirectory(Path("epoch-1-step-7")).ok());
  ASSERT_TRUE((*disk_.Create(Path("epoch-1-step-7/MANIFEST")))
                  ->Append({disk_.Content(Path("epoch-1-step-2/MANIFEST"))})
                  .ok());
  EXPECT_EQ(store_.Load("epoch-1-step-7").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointStoreTest, RemovesWhatNoKeptCheckpointNames) {
  const CheckpointManifest full = Save(1, 1);
  const CheckpointManifest second = Save(1, 2, &full);
  Save(1, 3, &second);
  Save(1, 4);
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->files, 2u);  // Two manifests; step 3 needs the files.
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-3", "epoch-1-step-4"));
  EXPECT_THAT(Files("epoch-1-step-1"), ElementsAre("server-0.sst", "server-1.sst"));
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->files, 0u);
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 7u);
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("epoch-1-step-4"));
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 0u);
  EXPECT_THAT(Files("epoch-1-step-4"), ElementsAre("MANIFEST", "server-0.sst", "server-1.sst"));
}

// The second generation began with step 9 of the first.
TEST_F(CheckpointStoreTest, WhatANewGenerationLeftBehindIsOlder) {
  Save(1, 9);
  Save(1, 29);
  const CheckpointManifest first = Save(2, 14);
  EXPECT_EQ((**store_.Newest()).SerializeAsString(), first.SerializeAsString());
  Save(2, 19, &first);
  Write(2, 24);  // being written
  ASSERT_TRUE(store_.RemoveUnneeded(2, {"epoch-2-step-24"}).ok());
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-14", "epoch-2-step-19"));
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("epoch-2-step-14", "epoch-2-step-19", "epoch-2-step-24"));
}

TEST_F(CheckpointStoreTest, LeavesAloneWhatMayBeInUse) {
  Write(1, 7);  // of a generation that is over
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 0u);
  Save(2, 10);
  Write(2, 9);   // called off
  Write(2, 8);   // named
  Write(2, 11);  // being written
  Write(3, 5);   // of a generation that has just begun
  Save(1, 2);
  Damage("epoch-1-step-2/MANIFEST");
  ASSERT_TRUE(disk_.CreateDirectory(Path("somebody's")).ok());
  ASSERT_TRUE(store_.WriteJobState({}).ok());
  EXPECT_EQ(store_.RemoveUnneeded(1, {"epoch-2-step-8"})->files, 4u);
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("JOB_STATE", "epoch-1-step-2", "epoch-2-step-10", "epoch-2-step-11",
                          "epoch-2-step-8", "epoch-3-step-5", "somebody's"));
  EXPECT_THAT(Files("epoch-1-step-2"), ElementsAre("MANIFEST", "server-0.sst", "server-1.sst"));
}

TEST_F(CheckpointStoreTest, EmptyFoldersGo) {
  Save(1, 9);
  Write(1, 29);  // Without a manifest.
  ASSERT_TRUE(disk_.CreateDirectory(Path("epoch-1-step-19")).ok());
  ASSERT_TRUE(disk_.CreateDirectory(Path("epoch-2-step-39")).ok());
  ASSERT_TRUE(disk_.CreateDirectory(Path("notes")).ok());
  ASSERT_TRUE(store_.RemoveEmptyFolders().ok());
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("epoch-1-step-29", "epoch-1-step-9", "notes"));
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-9"));
}

TEST_F(CheckpointStoreTest, ServersRemoveAndWriteFilesMeanwhile) {
  Save(1, 1);
  Save(1, 2);
  Save(1, 3);
  const std::string raced = Path("epoch-1-step-1/server-0.sst");
  disk_.on_remove = [&](const std::string& path) {
    if (path == raced) {
      EXPECT_TRUE(disk_.SimulatedDisk::Remove(path).ok());
    } else if (path == Path("epoch-1-step-2/server-1.sst")) {
      EXPECT_TRUE(disk_.Create(Path("epoch-1-step-2/server-2.sst")).ok());
    }
  };
  const auto removed = store_.RemoveUnneeded(1, {});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->files, 5u);  // Of two manifests and four shards.
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("epoch-1-step-2", "epoch-1-step-3"));
  EXPECT_THAT(Files("epoch-1-step-2"), ElementsAre("server-2.sst"));
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 1u);
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("epoch-1-step-3"));
}

// Nobody here can tell which files it names: none goes that was there before it.
TEST_F(CheckpointStoreTest, WhatACheckpointOfAnotherVersionMayNeedStays) {
  Save(1, 5);
  const CheckpointManifest base = Save(2, 10);
  SaveOfAnotherVersion(base);  // Step 11
  Save(3, 15);
  Save(3, 16);
  Save(3, 17);
  const std::vector<std::string> older = Files("epoch-2-step-10");
  auto removal = store_.RemoveUnneeded(2, {});
  ASSERT_TRUE(removal.ok()) << removal.status();
  EXPECT_EQ(removal->files, 3u);
  EXPECT_THAT(removal->held_back, HasSubstr("older than epoch-2-step-11 stays"));
  EXPECT_THAT(removal->held_back, HasSubstr("format version 2"));
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("epoch-1-step-5", "epoch-2-step-10", "epoch-2-step-11", "epoch-3-step-16",
                          "epoch-3-step-17"));
  EXPECT_EQ(Files("epoch-2-step-10"), older);
  // Once it is gone the others go.
  ASSERT_TRUE(disk_.Remove(Path("epoch-2-step-11/MANIFEST")).ok());
  removal = store_.RemoveUnneeded(2, {});
  ASSERT_TRUE(removal.ok()) << removal.status();
  EXPECT_EQ(removal->held_back, "");
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("epoch-3-step-16", "epoch-3-step-17"));
  // One that holds nothing back is not worth a word.
  SaveOfAnotherVersion(EmptyManifest({2, Step(10)}, 2));
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->held_back, "");
}

TEST_F(CheckpointStoreTest, ACrashDuringRemovalLeavesWholeCheckpointsOnly) {
  const CheckpointManifest full = Save(1, 1);
  const CheckpointManifest second = Save(1, 2, &full);
  const CheckpointManifest third = Save(1, 3);
  Save(1, 4, &third);
  for (int operations = 0;; ++operations) {
    disk_.DieAfter(operations);
    const bool done = store_.RemoveUnneeded(1, {}).ok();
    disk_.CrashHost(&random_);
    for (const std::string& name : Names()) EXPECT_THAT(name, Not(HasSubstr("damaged")));
    EXPECT_THAT(Names(), Contains("epoch-1-step-4"));
    if (done) break;
  }
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-4"));
}

TEST_F(CheckpointStoreTest, WhatAnErrorLeftOfARemovalIsRemovedForGood) {
  for (int operations = 0; operations < 12; ++operations) {
    const int64_t step = 10 * operations;
    const CheckpointManifest full = Save(1, step + 1);
    Save(1, step + 2, &full);
    Save(1, step + 3);
    disk_.FailAfter(operations);
    store_.RemoveUnneeded(1, {}).status().IgnoreError();
    disk_.FailAfter(-1);
    ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
    disk_.CrashHost(&random_);
    for (const std::string& name : Names()) EXPECT_THAT(name, Not(HasSubstr("damaged")));
    EXPECT_THAT(Names(), Contains(CheckpointName({1, Step(step + 3)})));
  }
}

// It was there, and not for certain, when its launcher died.
TEST_F(CheckpointStoreTest, JobStateNamesABaseThatIsOnTheMedium) {
  int found = 0;
  for (int64_t step = 1; step <= 60; ++step) {
    const CheckpointManifest manifest = Write(1, step);
    disk_.DieAfter(static_cast<int>(random_() % 6));
    store_.Commit(manifest).IgnoreError();
    disk_.CrashProcess();
    const std::vector<std::string> names = Names();
    if (names.empty() || names.back() != CheckpointName({1, Step(step)})) continue;
    ++found;
    JobState state;
    state.set_job_id("j");
    state.set_base_checkpoint(names.back());
    ASSERT_TRUE(store_.WriteJobState(state).ok());
    disk_.CrashHost(&random_);
    EXPECT_THAT(Names(), Contains(names.back()));
    ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  }
  EXPECT_GT(found, 10);
}

TEST_F(CheckpointStoreTest, ACrashDuringCommitLeavesItWholeOrAbsent) {
  int whole = 0, absent = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    const CheckpointManifest manifest = Write(1, step);
    disk_.DieAfter(static_cast<int>(random_() % 6));
    const bool committed = store_.Commit(manifest).ok();
    disk_.CrashHost(&random_);
    const std::vector<std::string> names = Names();
    const bool there = !names.empty() && names.back() == CheckpointName({1, Step(step)});
    EXPECT_TRUE(there || !committed);
    for (const std::string& name : names) EXPECT_THAT(name, Not(HasSubstr("damaged")));
    ++(there ? whole : absent);
    // The shards may be gone, too.
    ASSERT_TRUE(store_.Commit(there ? manifest : Write(1, step)).ok());
    ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(absent, 0);
}

TEST_F(CheckpointStoreTest, JobStateIsReplacedInOneStep) {
  EXPECT_FALSE(store_.ReadJobState()->has_value());
  JobState state;
  state.set_job_id("j");
  for (uint64_t generation = 1; generation <= 50; ++generation) {
    state.set_generation(generation);
    disk_.DieAfter(static_cast<int>(random_() % 6));
    const bool written = store_.WriteJobState(state).ok();
    disk_.CrashHost(&random_);
    const auto read = store_.ReadJobState();
    ASSERT_TRUE(read.ok()) << read.status();
    const uint64_t found = read->has_value() ? (*read)->generation() : 0;
    EXPECT_TRUE(found == generation || (!written && found + 1 == generation)) << found;
    ASSERT_TRUE(store_.WriteJobState(state).ok());
  }
  Damage("JOB_STATE");
  const absl::Status damaged = store_.ReadJobState().status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("JOB_STATE"));
}

uint64_t BytesOf(const CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const CheckpointShard& shard : manifest.shards()) {
    for (const CheckpointFile& file : shard.files()) bytes += file.bytes();
  }
  return bytes;
}

TEST_F(CheckpointStoreTest, AScanReadsAFileThatCheckpointsShareOnce) {
  const CheckpointManifest older = Save(1, 9);
  const CheckpointManifest newer = Save(1, 19, &older);
  uint64_t read = 0, last_total = 0;
  ByteScan scan;
  scan.on_progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    if (done == total) read += done;
    last_total = total;
    return absl::OkStatus();
  };
  EXPECT_TRUE(store_.CheckBytes(older, &scan).ok());
  EXPECT_EQ(read, BytesOf(older));
  EXPECT_TRUE(store_.CheckBytes(newer, &scan).ok());
  EXPECT_EQ(read, BytesOf(newer));
  EXPECT_EQ(last_total, BytesOf(newer) - BytesOf(older));
  // All is known.
  EXPECT_TRUE(store_.CheckBytes(older, &scan).ok());
  EXPECT_EQ(read, BytesOf(newer));
}

TEST_F(CheckpointStoreTest, AScanThatIsEndedSaysNothingAboutTheFile) {
  const CheckpointManifest manifest = Save(1, 9);
  ByteScan scan;
  scan.on_progress = [](uint64_t, uint64_t) { return absl::CancelledError("enough"); };
  EXPECT_EQ(store_.CheckBytes(manifest, &scan), absl::CancelledError("enough"));
  EXPECT_THAT(scan.known, IsEmpty());
  scan.on_progress = nullptr;
  EXPECT_TRUE(store_.CheckBytes(manifest, &scan).ok());
}

}  // namespace
}  // namespace thermocline
