#include "common/checkpoint/checkpoint_store.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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

// A server may remove or write a file while the store removes files.
class SharedDisk : public SimulatedDisk {  // Says what was looked at, too.
 public:
  absl::Status Remove(const std::string& path) override {
    if (on_remove) on_remove(path);
    return SimulatedDisk::Remove(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    {
      absl::MutexLock lock(&mutex_);
      listed.push_back(directory);
    }
    return SimulatedDisk::List(directory);
  }
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
    if (absl::EndsWith(path, kRowsFileSuffix)) {
      absl::MutexLock lock(&mutex_);
      opened.push_back(path.substr(sizeof(kDirectory)));
    }
    return SimulatedDisk::Open(path);
  }
  std::function<void(const std::string& path)> on_remove;
  std::vector<std::string> listed, opened;  // Folders; files of rows, below the directory.

 private:
  absl::Mutex mutex_;  // Several threads open files.
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
  // As an earlier program did.
  void WriteJobState(JobState state) {
    state.set_format_version(kCheckpointFormatVersion);
    ASSERT_TRUE(WriteWholeFile(&disk_, EncodeJobState(state), Path(kJobStateName)).ok());
  }
  void Damage(absl::string_view file) {
    std::string bytes = disk_.Content(Path(file));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    disk_.SetContent(Path(file), bytes);
  }

  // As an earlier program left it.
  CheckpointManifest SaveOld(uint64_t generation, int64_t step) {
    const std::string folder = OldCheckpointName({generation, Step(step)});
    CheckpointManifest manifest = Write(generation, step);
    EXPECT_TRUE(disk_.CreateDirectory(Path(folder)).ok());
    for (CheckpointShard& shard : *manifest.mutable_shards()) {
      for (CheckpointFile& file : *shard.mutable_files()) {
        const std::string name = file.path().substr(file.path().find("server-"));
        const std::string path =
            absl::StrCat(folder, "/", name.substr(0, name.find('.')), kSstFileSuffix);
        EXPECT_TRUE(disk_.Rename(Path(file.path()), Path(path)).ok());
        file.set_path(path);
      }
    }
    EXPECT_TRUE(disk_.RemoveDirectory(Path(CheckpointName(Step(step)))).ok());
    EXPECT_TRUE(WriteWholeFile(&disk_, EncodeManifest(manifest), Path(folder + "/MANIFEST")).ok());
    return manifest;
  }

  // Writes a manifest of a later format version, which builds on `older`.
  void SaveOfAnotherVersion(const CheckpointManifest& older) {
    CheckpointManifest manifest = older;
    manifest.set_step(older.step() + 1);
    manifest.set_format_version(kManifestFormat.version + 1);
    const std::string folder = Path(CheckpointName(Step(manifest.step())));
    ASSERT_TRUE(disk_.CreateDirectory(folder).ok());
    const std::string bytes = EncodeFrame({kManifestFormat.magic, kManifestFormat.version + 1},
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
  EXPECT_EQ(store_.Load("step-000000009").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_.Commit(manifest).ok());
  EXPECT_TRUE(store_.Commit(manifest).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  const auto loaded = store_.Load("step-000000009");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ((**store_.Newest()).SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ(store_.Load("step-9").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointStoreTest, ListsByGenerationThenStep) {
  Save(3, 5);
  Save(1, 10);
  SaveOld(2, 9);
  SaveOld(1, 9);
  Save(2, 11);
  EXPECT_THAT(Names(), ElementsAre("epoch-1-step-9", "step-000000010", "epoch-2-step-9",
                                   "step-000000011", "step-000000005"));
  const CheckpointStore nowhere(&disk_, "/nowhere");
  EXPECT_EQ(nowhere.List().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointStoreTest, CommitRefusesWhatIsNotThere) {
  CheckpointManifest manifest = Write(1, 9);
  manifest.mutable_shards(1)->mutable_files(0)->set_bytes(5);
  const absl::Status size = store_.Commit(manifest);
  EXPECT_EQ(size.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(size.message()), HasSubstr("step-000000009/generation-1-server-1.rows"));
  ASSERT_TRUE(disk_.Remove(Path("step-000000009/generation-1-server-1.rows")).ok());
  EXPECT_EQ(store_.Commit(manifest).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointStoreTest, CommitsAndRemovalsOpenOnlyNewFiles) {
  const CheckpointManifest full = Save(1, 1);
  const CheckpointManifest second = Write(1, 2, &full);
  disk_.opened.clear();
  ASSERT_TRUE(store_.Commit(second).ok());
  EXPECT_THAT(disk_.opened, ElementsAre("step-000000002/generation-1-server-0.rows",
                                        "step-000000002/generation-1-server-1.rows"));
  Save(1, 3, &second);
  disk_.opened.clear();
  disk_.listed.clear();
  ASSERT_TRUE(store_.RemoveUnneeded(2, {}).ok());
  EXPECT_THAT(disk_.opened, IsEmpty());
  EXPECT_THAT(disk_.listed, ElementsAre(Path("HISTORY"), kDirectory, Path("step-000000001"),
                                        Path("step-000000002"), Path("step-000000003")));
  EXPECT_THAT(Names(), ElementsAre("step-000000002", "step-000000003"));
  EXPECT_THAT(disk_.opened, Not(IsEmpty())) << "who lists them looks at all";
  // One that its folder doesn't show any more is looked for: what is not whole replaces nothing.
  ASSERT_TRUE(disk_.Remove(Path("step-000000003/generation-1-server-0.rows")).ok());
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000002", "step-000000003 damaged"));
}

TEST_F(CheckpointStoreTest, SeveralThreadsLookAtFiles) {
  CheckpointStore store(&disk_, kDirectory, RandomNonces(), /*threads=*/4);
  CheckpointManifest manifest = Write(1, 9);
  disk_.opened.clear();
  ASSERT_TRUE(store.Commit(manifest).ok());
  EXPECT_THAT(disk_.opened,
              testing::UnorderedElementsAre("step-000000009/generation-1-server-0.rows",
                                            "step-000000009/generation-1-server-1.rows"));
  manifest = Write(1, 10);
  for (int i : {0, 1}) manifest.mutable_shards(i)->mutable_files(0)->set_bytes(5);
  const absl::Status size = store.Commit(manifest);
  EXPECT_EQ(size.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(size.message()), HasSubstr("step-000000010/generation-1-server-0.rows"));
}

// As each server asks for each file that it is about to write.
TEST_F(CheckpointStoreTest, HistoryIsNotListedForAFolderWithoutAManifest) {
  JobState state;
  state.set_job_id("job");
  state.set_generation(1);
  ASSERT_TRUE(store_.Open(state, 0).ok());
  Write(1, 9);
  const CheckpointStore server(&disk_, kDirectory);
  disk_.listed.clear();
  EXPECT_EQ(server.Load("step-000000009").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(server.Load("step-000000010").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(disk_.listed, Not(Contains(Path(kHistoryName))));
}

TEST_F(CheckpointStoreTest, DamageIsListedWithItsReason) {
  Save(1, 1);
  Save(1, 2);
  Save(1, 3);
  Damage("step-000000001/MANIFEST");
  ASSERT_TRUE(disk_.Truncate(Path("step-000000003/generation-1-server-0.rows"), 100).ok());
  EXPECT_THAT(Names(),
              ElementsAre("step-000000001 damaged", "step-000000002", "step-000000003 damaged"));
  const auto list = store_.List();
  EXPECT_EQ((*list)[0].status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*list)[0].status.message()), HasSubstr("step-000000001/MANIFEST"));
  EXPECT_THAT(std::string((*list)[2].status.message()),
              HasSubstr("step-000000003/generation-1-server-0.rows"));
  const absl::Status newest = store_.Newest().status();
  EXPECT_EQ(newest.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(newest.message()),
              HasSubstr("step-000000003/generation-1-server-0.rows"));
  // A manifest that was copied elsewhere.
  ASSERT_TRUE(disk_.CreateDirectory(Path("step-000000007")).ok());
  ASSERT_TRUE((*disk_.Create(Path("step-000000007/MANIFEST")))
                  ->Append({disk_.Content(Path("step-000000002/MANIFEST"))})
                  .ok());
  EXPECT_EQ(store_.Load("step-000000007").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointStoreTest, RemovesWhatNoKeptCheckpointNames) {
  const CheckpointManifest full = Save(1, 1);
  const CheckpointManifest second = Save(1, 2, &full);
  Save(1, 3, &second);
  Save(1, 4);
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->files, 2u);  // Two manifests; step 3 needs the files.
  EXPECT_THAT(Names(), ElementsAre("step-000000003", "step-000000004"));
  EXPECT_THAT(Files("step-000000001"),
              ElementsAre("generation-1-server-0.rows", "generation-1-server-1.rows"));
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->files, 0u);
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 7u);
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000004"));
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 0u);
  EXPECT_THAT(Files("step-000000004"),
              ElementsAre("MANIFEST", "generation-1-server-0.rows", "generation-1-server-1.rows"));
}

// The second generation began with step 9 of the first.
TEST_F(CheckpointStoreTest, WhatANewGenerationLeftBehindIsOlder) {
  Save(1, 9);
  Save(1, 29);
  const CheckpointManifest first = Save(2, 14);
  EXPECT_EQ((**store_.Newest()).SerializeAsString(), first.SerializeAsString());
  Save(2, 19, &first);
  Write(2, 24);  // being written
  ASSERT_TRUE(store_.RemoveUnneeded(2, {{2, Step(24)}}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000014", "step-000000019"));
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("step-000000014", "step-000000019", "step-000000024", "step-000000029"));
  EXPECT_THAT(Files("step-000000029"), IsEmpty());  // A server may be about to write there.
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
  Damage("step-000000002/MANIFEST");
  ASSERT_TRUE(disk_.CreateDirectory(Path("somebody's")).ok());
  WriteJobState({});
  EXPECT_EQ(store_.RemoveUnneeded(1, {{2, Step(8)}})->files, 4u);
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("JOB_STATE", "somebody's", "step-000000002", "step-000000005",
                          "step-000000008", "step-000000010", "step-000000011"));
  EXPECT_THAT(Files("step-000000002"),
              ElementsAre("MANIFEST", "generation-1-server-0.rows", "generation-1-server-1.rows"));
}

TEST_F(CheckpointStoreTest, EmptyFoldersGo) {
  Save(1, 9);
  Write(1, 29);  // Without a manifest.
  ASSERT_TRUE(disk_.CreateDirectory(Path("epoch-1-step-19")).ok());
  ASSERT_TRUE(disk_.CreateDirectory(Path("step-000000039")).ok());
  ASSERT_TRUE(disk_.CreateDirectory(Path("notes")).ok());
  ASSERT_TRUE(store_.RemoveEmptyFolders().ok());
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("notes", "step-000000009", "step-000000029"));
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
}

TEST_F(CheckpointStoreTest, ServersRemoveAndWriteFilesMeanwhile) {
  Save(1, 1);
  Save(1, 2);
  Save(1, 3);
  const std::string raced = Path("step-000000001/generation-1-server-0.rows");
  disk_.on_remove = [&](const std::string& path) {
    if (path == raced) {
      EXPECT_TRUE(disk_.SimulatedDisk::Remove(path).ok());
    } else if (path == Path("step-000000002/generation-1-server-1.rows")) {
      EXPECT_TRUE(disk_.Create(Path("step-000000002/generation-1-server-2.rows")).ok());
    }
  };
  const auto removed = store_.RemoveUnneeded(1, {});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->files, 5u);  // All of two manifests and four shards but one.
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000002", "step-000000003"));
  EXPECT_THAT(Files("step-000000002"), ElementsAre("generation-1-server-2.rows"));
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 1u);
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000003"));
}

// This program cannot know which files it names, so no file that was there before it is removed.
TEST_F(CheckpointStoreTest, WhatACheckpointOfAnotherVersionMayNeedStays) {
  Save(1, 5);
  const CheckpointManifest base = Save(2, 10);
  SaveOfAnotherVersion(base);  // Step 11
  Save(3, 15);
  Save(3, 16);
  Save(3, 17);
  const std::vector<std::string> older = Files("step-000000010");
  auto removal = store_.RemoveUnneeded(2, {});
  ASSERT_TRUE(removal.ok()) << removal.status();
  EXPECT_EQ(removal->files, 3u);
  EXPECT_THAT(removal->held_back, HasSubstr("older than step-000000011 stays"));
  EXPECT_THAT(removal->held_back, HasSubstr("format version 3"));
  EXPECT_THAT(*disk_.List(kDirectory),
              ElementsAre("step-000000005", "step-000000010", "step-000000011", "step-000000016",
                          "step-000000017"));
  EXPECT_EQ(Files("step-000000010"), older);
  // Once it is gone the others go.
  ASSERT_TRUE(disk_.Remove(Path("step-000000011/MANIFEST")).ok());
  removal = store_.RemoveUnneeded(2, {});
  ASSERT_TRUE(removal.ok()) << removal.status();
  EXPECT_EQ(removal->held_back, "");
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000016", "step-000000017"));
  // A checkpoint for which no file stays is not reported.
  SaveOfAnotherVersion(EmptyManifest({2, Step(10)}, 2));
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->held_back, "");
}

// The second generation began with step 5 of the first, and comes to the steps that it left behind.
TEST_F(CheckpointStoreTest, ALaterGenerationTakesThePlaceOfAStepsCheckpoint) {
  const CheckpointManifest base = Save(1, 5);
  const CheckpointManifest first = Save(1, 9, &base);
  const CheckpointManifest left = Save(1, 14, &first);
  const CheckpointManifest manifest = Write(2, 9);
  EXPECT_EQ(store_.Load("step-000000009", 2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_.CheckFiles(first).ok());
  ASSERT_TRUE(store_.Commit(manifest).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000005", "step-000000014", "step-000000009"));
  EXPECT_TRUE(store_.Load("step-000000009", 2).ok());
  EXPECT_EQ(store_.Load("step-000000009", 1).status().code(), absl::StatusCode::kNotFound);
  // Step 14 of the first still builds on the one that is gone.
  ASSERT_TRUE(store_.RemoveUnneeded(2, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000014", "step-000000009"));
  EXPECT_THAT(Files("step-000000009"),
              ElementsAre("MANIFEST", "generation-1-server-0.rows", "generation-1-server-1.rows",
                          "generation-2-server-0.rows", "generation-2-server-1.rows"));
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}, IdOf(left)).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000014", "step-000000009"));
  // Its name does not mean the replaced checkpoint.
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}, IdOf(first)).ok());
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000009", "step-000000014"));
  EXPECT_THAT(Files("step-000000014"), IsEmpty());
  EXPECT_THAT(Files("step-000000009"),
              ElementsAre("MANIFEST", "generation-2-server-0.rows", "generation-2-server-1.rows"));
}

TEST_F(CheckpointStoreTest, AnEarlierGenerationTakesNoPlace) {
  const CheckpointManifest late = Write(1, 9);
  const CheckpointManifest later = Save(2, 9);
  const absl::Status refused = store_.Commit(late);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("generation 2 has made the checkpoint step-000000009"));
  EXPECT_TRUE(store_.Load("step-000000009", 2).ok());
  // Nor the name of a step that the later generation has still to come to.
  const CheckpointManifest base = Save(1, 4);
  const CheckpointManifest next = Write(1, 14);
  JobState state;
  state.set_job_id("test-1");
  state.set_generation(2);
  WriteJobState(state);
  EXPECT_EQ(store_.Commit(next).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_.Load("step-000000014").status().code(), absl::StatusCode::kNotFound);
  // Its own checkpoint may be committed again, with the evaluation of its step.
  EXPECT_TRUE(store_.Commit(base).ok());
  EXPECT_TRUE(store_.Commit(later).ok());
}

TEST_F(CheckpointStoreTest, AnEarlierProgramsCheckpointsStandBesideNewOnes) {
  CheckpointManifest old = SaveOld(1, 9);
  Save(1, 7);
  const CheckpointManifest same_step = Save(2, 9);
  EXPECT_THAT(Names(), ElementsAre("step-000000007", "epoch-1-step-9", "step-000000009"));
  // It is committed again in its old folder.
  old.set_samples(77);
  ASSERT_TRUE(store_.Commit(old).ok());
  EXPECT_EQ(store_.Load("epoch-1-step-9")->samples(), 77u);
  EXPECT_TRUE(store_.Load("step-000000009", 2).ok());
  // An increment of its generation builds on it.
  const CheckpointManifest increment = Save(1, 12, &old);
  EXPECT_EQ(increment.shards(0).files(0).path(), "epoch-1-step-9/server-0.sst");
  EXPECT_EQ(store_.RemoveUnneeded(2, {})->files, 4u);  // Step 7, and a manifest.
  EXPECT_THAT(Names(), ElementsAre("step-000000012", "step-000000009"));
  EXPECT_THAT(Files("epoch-1-step-9"), ElementsAre("server-0.sst", "server-1.sst"));
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000009", "step-000000012"));
  EXPECT_THAT(Files("step-000000012"), IsEmpty());
}

// A folder is not skipped because its manifest is damaged.
TEST_F(CheckpointStoreTest, ADamagedOneStandsWhereItsFilesSay) {
  Save(1, 20);
  Save(2, 10);
  Save(3, 5);
  Write(4, 3);
  Damage("step-000000010/MANIFEST");
  EXPECT_THAT(Names(), ElementsAre("step-000000020", "step-000000010 damaged", "step-000000005"));
  Write(5, 10);  // A checkpoint of unknown generation is taken for the newest.
  EXPECT_THAT(Names(), ElementsAre("step-000000020", "step-000000005", "step-000000010 damaged"));
  EXPECT_EQ(*store_.NewestGeneration(), 5u);
  // One without files of its own.
  ASSERT_TRUE(store_.Commit(EmptyManifest({1, Step(30)}, 2)).ok());
  Damage("step-000000030/MANIFEST");
  EXPECT_EQ(store_.List()->back().name, "step-000000030");
  // It stays for the user to inspect, with all files beside it.
  const std::vector<std::string> files = Files("step-000000010");
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  EXPECT_EQ(Files("step-000000010"), files);
  EXPECT_EQ(Files("step-000000003"),
            std::vector<std::string>({"generation-4-server-0.rows", "generation-4-server-1.rows"}));
}

// A server of this generation has just made the folder, in which nothing lies yet.
TEST_F(CheckpointStoreTest, AFolderOfALaterStepStaysForItsServer) {
  Save(1, 19);
  Save(2, 9);
  EXPECT_EQ(store_.RemoveUnneeded(1, {})->files, 3u);
  EXPECT_THAT(Files("step-000000019"), IsEmpty());
  ASSERT_TRUE(store_.RemoveEmptyFolders().ok());
  EXPECT_THAT(*disk_.List(kDirectory), ElementsAre("step-000000009"));
}

// A replacement that a launcher made before it died may not be on the medium, although the next
// launcher sees it.
TEST_F(CheckpointStoreTest, ACrashLeavesTheReplacedOneOrTheNewOneWhole) {
  int replaced = 0, stayed = 0;
  for (int run = 0; run < 200; ++run) {
    SimulatedDisk disk;
    CheckpointStore store(&disk, kDirectory);
    ASSERT_TRUE(store.Prepare().ok());
    const auto write = [&](uint64_t generation, int64_t step) {
      TestRows rows;
      AddRandomRows(5, 1, &random_, &rows);
      return WriteTestCheckpoint(&disk, kDirectory, {generation, Step(step)}, 1, rows);
    };
    ASSERT_TRUE(store.Commit(write(1, 9)).ok());
    const CheckpointManifest second = write(2, 9), third = write(3, 4);
    disk.DieAfter(static_cast<int>(random_() % 8));
    const bool committed = store.Commit(second).ok();
    if (random_() % 2 == 0) {
      disk.CrashProcess();
      ASSERT_TRUE(store.Commit(third).ok());
      disk.DieAfter(static_cast<int>(random_() % 16));
      store.RemoveUnneeded(2, {}).status().IgnoreError();
    }
    disk.CrashHost(&random_);
    const auto list = store.List();
    ASSERT_TRUE(list.ok()) << list.status();
    for (const ListedCheckpoint& listed : *list) EXPECT_TRUE(listed.status.ok()) << listed.status;
    const auto there = store.Load("step-000000009");
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_TRUE(!committed || there->generation() == 2);
    ++(there->generation() == 2 ? replaced : stayed);
  }
  EXPECT_GT(replaced, 10);
  EXPECT_GT(stayed, 10);
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
    EXPECT_THAT(Names(), Contains("step-000000004"));
    if (done) break;
  }
  ASSERT_TRUE(store_.RemoveUnneeded(1, {}).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000004"));
}

TEST_F(CheckpointStoreTest, WhatAnErrorLeftOfARemovalIsRemovedForGood) {
  for (int operations = 0; operations < 20; ++operations) {
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
    EXPECT_THAT(Names(), Contains(CheckpointName(Step(step + 3))));
  }
}

TEST_F(CheckpointStoreTest, ACrashDuringCommitLeavesItWholeOrAbsent) {
  int whole = 0, absent = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    const CheckpointManifest manifest = Write(1, step);
    disk_.DieAfter(static_cast<int>(random_() % 6));
    const bool committed = store_.Commit(manifest).ok();
    disk_.CrashHost(&random_);
    const std::vector<std::string> names = Names();
    const bool there = !names.empty() && names.back() == CheckpointName(Step(step));
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

TEST_F(CheckpointStoreTest, WhatFailedToBeCommittedIsLookedAtAgain) {
  const CheckpointManifest manifest = Write(1, 5);
  disk_.SetFreeBytes(0);
  EXPECT_EQ(store_.Commit(manifest).code(), absl::StatusCode::kResourceExhausted);
  disk_.SetFreeBytes(UINT64_MAX);
  // Its server takes it for called off.
  ASSERT_TRUE(
      disk_.Remove(absl::StrCat(store_.directory(), "/", manifest.shards(0).files(0).path())).ok());
  EXPECT_EQ(store_.Commit(manifest).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointStoreTest, TheStateOfAnEarlierProgramIsRead) {
  EXPECT_FALSE(store_.ReadJobState()->has_value());
  JobState state;
  state.set_job_id("j");
  state.set_generation(7);
  WriteJobState(state);
  EXPECT_EQ((*store_.ReadJobState())->generation(), 7u);
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
  // Every file is known by now.
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
