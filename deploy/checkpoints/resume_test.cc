#include "deploy/checkpoints/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

constexpr char kDirectory[] = "checkpoints";
constexpr char kBuild[] = "2.0";
constexpr char kJob[] = R"(
name: "j" seed: 3
data { format: CRITEO_TSV path: "log.tsv" num_categorical: 2 }
default_table { dim: 8 }
dlrm { bottom: 8 top: 8 }
train { batch_size: 16 learning_rate { base: 0.1 } }
checkpoint { every_steps: 10 }
)";

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() : store_(&disk_, kDirectory), job_(JobWith({})) {
    EXPECT_TRUE(store_.Prepare().ok());
  }

  static Job JobWith(const std::vector<std::string>& overrides) {
    auto job = ParseJob(kJob, "j", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  }
  CheckpointManifest ManifestAt(uint64_t generation, int64_t step) const {
    CheckpointManifest manifest = EmptyManifest({generation, Step(step)}, 1);
    manifest.set_job_id(job_.name());
    manifest.set_seed(job_.seed());
    manifest.set_samples(static_cast<uint64_t>(step + 1) * 16);
    *manifest.mutable_job() = job_;
    manifest.clear_tables();
    for (const TableLayout& table : ResolveTables(job_).AllLayouts()) {
      *manifest.add_tables() = TableLayoutToProto(table);
    }
    return manifest;
  }
  void Commit(uint64_t generation, int64_t step) {
    const absl::Status committed = store_.Commit(ManifestAt(generation, step));
    EXPECT_TRUE(committed.ok()) << committed;
  }
  // As earlier programs made them.
  void CommitOld(uint64_t generation, int64_t step) {
    const std::string folder =
        absl::StrCat(kDirectory, "/", OldCheckpointName({generation, Step(step)}));
    ASSERT_TRUE(disk_.CreateDirectory(folder).ok());
    ASSERT_TRUE(WriteWholeFile(&disk_, EncodeManifest(ManifestAt(generation, step)),
                               absl::StrCat(folder, "/", kManifestName))
                    .ok());
  }
  // `base_generation`: 0: as earlier programs wrote it.
  void Write(uint64_t generation, const std::string& base, uint64_t base_generation = 0) {
    JobState state;
    state.set_job_id(job_.name());
    state.set_generation(generation);
    state.set_base_checkpoint(base);
    state.set_base_generation(base_generation);
    state.set_format_version(kCheckpointFormatVersion);
    EXPECT_TRUE(
        WriteWholeFile(&disk_, EncodeJobState(state), absl::StrCat(kDirectory, "/", kJobStateName))
            .ok());
  }
  void Damage(const std::string& name) {
    const std::string path = absl::StrCat(kDirectory, "/", name, "/", kManifestName);
    std::string content = disk_.Content(path);
    content[content.size() / 2] ^= 1;
    disk_.SetContent(path, content);
  }
  absl::StatusOr<GenerationStart> Find(const std::string& name = "") const {
    ASSIGN_OR_RETURN(const ResumePoint point, FindResumePoint(store_, job_, kBuild, name));
    return point.start;
  }

  SimulatedDisk disk_;
  CheckpointStore store_;
  const Job job_;
};

TEST_F(ResumeTest, NothingWasRunThere) {
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(CheckUnused(store_).ok());
  const CheckpointStore nowhere(&disk_, "nowhere");
  EXPECT_EQ(FindResumePoint(nowhere, job_, kBuild, "").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(CheckUnused(nowhere).ok());
}

TEST_F(ResumeTest, FromTheBeginningWhereNoCheckpointWasMade) {
  Write(1, "");
  const auto start = Find();
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->generation, 2u);
  EXPECT_EQ(start->base, "");
  EXPECT_EQ(start->first_step(), Step(0));
}

TEST_F(ResumeTest, WhatTheLastGenerationHadSpent) {
  JobState state;
  state.set_job_id(job_.name());
  state.set_generation(1);
  state.mutable_spent()->mutable_rollbacks()->set_times(3);
  ASSERT_TRUE(store_.Open(state, 0).ok());
  ASSERT_TRUE(store_.Commit(ManifestAt(1, 9)).ok());
  const auto point = FindResumePoint(store_, job_, kBuild, "");
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->start.base, "step-000000009");
  EXPECT_EQ(point->spent.rollbacks().times(), 3u);
  EXPECT_EQ(point->start.spent.rollbacks().times(), 0u);  // Only for whom it matters.
}

TEST_F(ResumeTest, FromTheNewestOfTheLastGeneration) {
  Commit(1, 9);
  Commit(2, 29);
  Commit(2, 39);
  Write(2, "step-000000009", 1);
  const auto start = Find();
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->generation, 3u);
  EXPECT_EQ(start->base, "step-000000039");
  EXPECT_EQ(start->first_step(), Step(40));
  EXPECT_EQ(start->base_samples, 640u);
}

TEST_F(ResumeTest, FromWhatTheLastGenerationBeganWithIfItMadeNone) {
  Commit(1, 9);
  Commit(1, 19);  // The user decided not to continue with this one.
  Write(2, "step-000000009", 1);
  EXPECT_EQ(Find()->base, "step-000000009");
  EXPECT_EQ(Find()->generation, 3u);
}

TEST_F(ResumeTest, WithoutJobStateFromTheNewest) {
  Commit(1, 9);
  Commit(4, 19);
  EXPECT_EQ(Find()->base, "step-000000019");
  EXPECT_EQ(Find()->generation, 5u);
}

TEST_F(ResumeTest, ADamagedOneIsNamedAndNotPassedOver) {
  Commit(1, 9);
  Commit(1, 19);
  Write(1, "");
  Damage("step-000000019");
  const auto start = Find();
  EXPECT_EQ(start.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(start.status().message(), HasSubstr("step-000000019"));
  EXPECT_THAT(start.status().message(), HasSubstr("every byte: step-000000009"));
  // Newer increments may use its files.
  EXPECT_THAT(start.status().message(), Not(HasSubstr("remove")));
  const auto chosen = Find("step-000000009");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->base, "step-000000009");
  EXPECT_EQ(chosen->generation, 2u);
}

TEST_F(ResumeTest, AMissingOne) {
  Write(2, "step-000000009", 1);
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Find("step-000000008").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ResumeTest, TheOneBeforeStandsInForABaseThatIsGone) {
  Commit(1, 49);  // Left behind: the second generation began elsewhere.
  Commit(2, 9);
  Commit(2, 19);
  Commit(2, 39);
  Write(3, "step-000000029", 2);
  const auto point = FindResumePoint(store_, job_, kBuild, "");
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->start.base, "step-000000019");
  EXPECT_EQ(point->start.generation, 4u);
  EXPECT_THAT(
      point->notices,
      ElementsAre("checkpoint step-000000029, with which the last generation began, is gone; "
                  "going on with step-000000019, the newest whole one that its generation made "
                  "before"));
  Damage("step-000000019");
  EXPECT_EQ(Find()->base, "step-000000009");
  // It is not known from which of the others it continued.
  Damage("step-000000009");
  const absl::Status none = Find().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(none.message()), EndsWith("byte: step-000000039, step-000000049"));
}

// A checkpoint of another generation is there now, with which no later generation began.
TEST_F(ResumeTest, ABaseThatWasReplacedIsGone) {
  Commit(1, 9);
  Commit(2, 19);
  Write(3, "step-000000019", 1);
  EXPECT_EQ(Find()->base, "step-000000009");
  Write(3, "step-000000019", 2);
  EXPECT_EQ(Find()->base, "step-000000019");
  EXPECT_EQ(Find()->base_generation, 2u);
}

TEST_F(ResumeTest, AStepNamesACheckpointWhereThereIsOne) {
  Commit(2, 9);
  CommitOld(1, 19);
  for (const char* name : {"step-9", "step-09", "step-000000009"}) {
    ASSERT_TRUE(Find(name).ok()) << Find(name).status();
    EXPECT_EQ(Find(name)->base, "step-000000009");
  }
  for (const char* name : {"step-19", "epoch-1-step-19"}) {
    ASSERT_TRUE(Find(name).ok()) << Find(name).status();
    EXPECT_EQ(Find(name)->base, "epoch-1-step-19");
    EXPECT_EQ(Find(name)->base_generation, 1u);
  }
  for (const char* name : {"step-29", "epoch-2-step-9", "step-", "step-x", "9", "Step-9"}) {
    EXPECT_EQ(Find(name).status().code(), absl::StatusCode::kNotFound) << name;
  }
  Commit(2, 19);
  const absl::Status both = Find("step-19").status();
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument) << both;
  EXPECT_THAT(std::string(both.message()),
              HasSubstr("'step-19' may be any of epoch-1-step-19 (generation 1), step-000000019 "
                        "(generation 2)"));
  // The folders' own names say which.
  EXPECT_EQ(Find("step-000000019")->base_generation, 2u);
  EXPECT_EQ(Find("epoch-1-step-19")->base_generation, 1u);
}

// JOB_STATE and the manifests are gone, or damaged: files of a server tell of its generation.
TEST_F(ResumeTest, TheNextGenerationIsAboveEveryOneThatWroteAFile) {
  Commit(1, 9);
  TestRows rows;
  rows[RowKeyOf(TableId(1), 7)] = {1, 1, {1, 2, 3}};
  WriteTestRows(&disk_, kDirectory, RowsFilePath({7, Step(29)}, {ServerIndex(0), 1}), rows);
  EXPECT_EQ(Find()->base, "step-000000009");
  EXPECT_EQ(Find()->generation, 8u);
}

TEST_F(ResumeTest, WhatIsLeftInsteadOfADamagedBase) {
  EXPECT_EQ(InsteadOfDamagedBase(store_), std::nullopt);
  Commit(1, 9);
  Commit(1, 19);
  Write(1, "");
  EXPECT_EQ(InsteadOfDamagedBase(store_), std::nullopt);
  Write(2, "step-000000019", 1);
  EXPECT_THAT(InsteadOfDamagedBase(store_), Optional(ElementsAre("step-000000009")));
  Damage("step-000000009");
  EXPECT_THAT(InsteadOfDamagedBase(store_), Optional(IsEmpty()));
  Commit(2, 29);
  EXPECT_EQ(InsteadOfDamagedBase(store_), std::nullopt);
}

TEST_F(ResumeTest, WhatSharesADamagedFileIsNotCalledWhole) {
  // The first is complete alone, the third is an increment of the second.
  std::mt19937_64 random(TestSeed());
  CheckpointManifest before;
  for (const int64_t step : {9, 19, 29}) {
    TestRows rows;
    AddRandomRows(50, 1, &random, &rows);
    CheckpointManifest manifest = WriteTestCheckpoint(&disk_, kDirectory, {1, Step(step)}, 1, rows,
                                                      step == 29 ? &before : nullptr);
    manifest.set_job_id(job_.name());
    ASSERT_TRUE(store_.Commit(manifest).ok());
    before = manifest;
  }
  Write(2, "step-000000019", 1);
  const std::string path = absl::StrCat(kDirectory, "/", before.shards(0).files(0).path());
  ASSERT_EQ(path, "checkpoints/step-000000019/generation-1-server-0.rows");
  std::string content = disk_.Content(path);
  content[content.size() / 2] ^= 1;
  disk_.SetContent(path, content);
  EXPECT_THAT(InsteadOfDamagedBase(store_), Optional(ElementsAre("step-000000009")));
  // Nor does it replace a checkpoint that is gone.
  Write(2, "step-000000039", 1);
  const auto next = FindNextGeneration(store_, job_.name(), "");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->start.base, "step-000000009");
  Write(2, "step-000000019", 1);
  Damage("step-000000019");
  const absl::Status refused = Find().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), EndsWith("whole, by every byte: step-000000009"));
}

TEST_F(ResumeTest, WhetherAJobCanGoOnIsKnownWithoutItsJobFile) {
  EXPECT_EQ(CheckResumable(store_).code(), absl::StatusCode::kNotFound);
  Commit(1, 9);
  EXPECT_TRUE(CheckResumable(store_).ok());
  Write(2, "step-000000009", 1);
  EXPECT_TRUE(CheckResumable(store_).ok());
  Write(2, "step-000000004", 1);
  EXPECT_EQ(CheckResumable(store_).code(), absl::StatusCode::kDataLoss);
  CheckpointManifest others = ManifestAt(2, 19);
  others.set_job_id("other");
  ASSERT_TRUE(store_.Commit(others).ok());
  EXPECT_EQ(CheckResumable(store_).code(), absl::StatusCode::kFailedPrecondition);
  disk_.SetContent(absl::StrCat(kDirectory, "/", kJobStateName), "TclnJobS");
  const absl::Status status = CheckResumable(store_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("JOB_STATE"));
}

TEST_F(ResumeTest, AnotherJobsState) {
  Write(1, "");
  const absl::Status status = FindResumePoint(store_, JobWith({"name=other"}), kBuild, "").status();
  EXPECT_EQ(status, absl::FailedPreconditionError("the job is 'other', JOB_STATE is of job 'j'"));
}

TEST_F(ResumeTest, AnotherJobsCheckpoints) {
  Commit(1, 9);
  Write(1, "");
  const auto difference = [&](const std::vector<std::string>& overrides) {
    const auto start = FindResumePoint(store_, JobWith(overrides), kBuild, "");
    EXPECT_EQ(start.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(start.status().message());
  };
  EXPECT_THAT(difference({"name=other"}), HasSubstr("of job 'j'"));
  EXPECT_THAT(difference({"train.batch_size=32"}), HasSubstr("train.batch_size is 32"));
  EXPECT_THAT(difference({"seed=4"}), HasSubstr("seed is 4"));
  EXPECT_THAT(difference({"data.test_share=0.25"}),
              HasSubstr("data.test_share is 0.25, and the checkpoint was made with 0.1"));
  EXPECT_THAT(difference({"data.format=DLRM_NPY", "data.test_share=0.1"}),
              HasSubstr("data.format is DLRM_NPY, and"));
  EXPECT_THAT(difference({"feature[0]={name: 'C1'}", "feature[1]={name: 'C2' pooling: MEAN}"}),
              HasSubstr("feature[1].pooling is MEAN, and the checkpoint was made with SUM"));
  EXPECT_THAT(difference({"default_table.dim=4"}), HasSubstr("table 'C1': dim is 4 here, 8 there"));
  EXPECT_THAT(difference({"data.num_categorical=3"}), HasSubstr("no table 'C3'"));
  EXPECT_THAT(difference({"data.num_categorical=1"}), HasSubstr("table 'C2', the job has none"));
}

TEST_F(ResumeTest, TheLabelIsThatOfTheCheckpoint) {
  Job job = job_;
  if (job.task_size() == 0) job.add_task();
  job.mutable_task(0)->set_label("label");
  EXPECT_TRUE(CheckData(job, ManifestAt(1, 9)).ok());
  job.mutable_task(0)->set_label("buy");
  EXPECT_EQ(CheckData(job, ManifestAt(1, 9)),
            absl::FailedPreconditionError(
                "the model learns 'buy' (task.label), and the checkpoint's learned 'label'"));
}

TEST_F(ResumeTest, WhichBatchesAreHotIsAsBefore) {
  CheckpointManifest manifest = ManifestOf(JobWith({"fae.budget=1MiB"}), kBuild);
  const auto check = [&](const std::vector<std::string>& overrides) {
    return std::string(CheckData(JobWith(overrides), manifest).message());
  };
  EXPECT_THAT(check({}), HasSubstr("the job has no `fae`, and the checkpoint was made with it"));
  EXPECT_THAT(check({"fae.budget=2MiB"}), HasSubstr("fae.budget is"));
  EXPECT_THAT(check({"fae.budget=1MiB", "fae.schedule.rate=10"}),
              HasSubstr("fae.schedule.rate is 10"));
  EXPECT_THAT(check({"fae.budget=1MiB", "fae.schedule.fixed=true"}), HasSubstr("schedule.fixed"));
  EXPECT_THAT(check({"fae.budget=1MiB", "calibration.sample_share=0.5"}),
              HasSubstr("calibration.sample_share is 0.5"));
  EXPECT_EQ(check({"fae.budget=1MiB", "calibration.directory=elsewhere"}), "");
  EXPECT_EQ(check({"fae.budget=1MiB", "fae.schedule.min_rate=5", "fae.schedule.scored_rows=7"}),
            "");
  manifest = ManifestOf(JobWith({}), kBuild);
  EXPECT_THAT(check({"fae.budget=1MiB"}),
              HasSubstr("the job has `fae`, and the checkpoint was made without it"));
}

TEST_F(ResumeTest, WhatDoesNotMatter) {
  Commit(1, 9);
  Write(1, "");
  const Job job = JobWith({"cluster.servers=4", "cluster.workers=2", "train.passes=3",
                           "default_table.storage={rocksdb{memory:'1MiB'}}", "data.path=elsewhere",
                           "data.max_bad_lines=7", "data.read_ahead_batches=9",
                           "data.parser_threads=3", "data.s3.region='eu-west-1'"});
  EXPECT_TRUE(FindResumePoint(store_, job, kBuild, "").ok());
}

// "a:10" is a file a of 10 bytes; "a:10x" one with other bytes at its beginning.
DataFiles FilesOf(const std::vector<std::string>& train,
                  const std::vector<std::string>& test = {}) {
  DataFiles files;
  const auto add = [](const std::string& text, DataFile* file) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    file->set_path(parts[0]);
    if (parts.size() == 1) return;
    file->set_bytes(static_cast<uint64_t>(std::stoi(parts[1])));
    file->set_head_crc32c(absl::EndsWith(text, "x") ? 1 : 2);
    file->set_tail_crc32c(3);
  };
  for (const std::string& file : train) add(file, files.add_train());
  for (const std::string& file : test) add(file, files.add_test());
  return files;
}

TEST_F(ResumeTest, TheDataAreThoseOfTheCheckpoint) {
  CheckpointManifest manifest = ManifestAt(1, 9);
  std::vector<std::string> notices;
  // "": they are the same, or files were added.
  const auto check = [&](const DataFiles& now) {
    Job job = job_;
    *job.mutable_data_files() = now;
    notices.clear();
    const absl::Status status = CheckDataFiles(job, manifest, &notices);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  // The checkpoint is of an earlier program.
  EXPECT_EQ(check(FilesOf({"a:10"})), "");
  EXPECT_THAT(notices, ElementsAre(HasSubstr("does not know its data files")));

  *manifest.mutable_job()->mutable_data_files() = FilesOf({"a:10", "b:20", "pipe"}, {"t:5"});
  EXPECT_EQ(check(FilesOf({"a:10", "b:20", "pipe"}, {"t:5"})), "");
  EXPECT_THAT(notices, IsEmpty());
  // The files are moved and renamed, in the same order. All pipes look the same.
  EXPECT_EQ(check(FilesOf({"/c:10", "/b:20", "other"}, {"/e:5"})), "");
  EXPECT_THAT(notices, IsEmpty());

  EXPECT_EQ(check(FilesOf({"a:10", "b:21", "pipe"}, {"t:5"})), "b has 21 bytes, and had 20");
  EXPECT_EQ(check(FilesOf({"a:10x", "b:20", "pipe"}, {"t:5"})),
            "a has 10 bytes as before, but others at its beginning");
  EXPECT_EQ(check(FilesOf({"b:20", "a:10", "pipe"}, {"t:5"})),
            "b is training file 1 now, and was file 2");
  EXPECT_EQ(check(FilesOf({"0:7", "a:10", "b:20", "pipe"}, {"t:5"})),
            "0 is training file 1, where a was");
  EXPECT_EQ(check(FilesOf({"a:10", "c:7"}, {"t:5"})),
            "c is training file 2, in place of b, and is another: it has 7 bytes, and had 20");
  EXPECT_EQ(check(FilesOf({"a:10", "b:20"}, {"t:5"})),
            "pipe, training file 3, is gone: there are 2 now");
  EXPECT_EQ(check(FilesOf({"a:10", "b:20", "pipe"}, {"t:5x"})),
            "t has 5 bytes as before, but others at its beginning");
  EXPECT_EQ(check(FilesOf({"a:10", "b:20", "pipe"})),
            "t, held-out file 1, is gone: there are 0 now");

  EXPECT_EQ(check(FilesOf({"a:10", "b:20", "pipe", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1"},
                          {"t:5", "u:6"})),
            "");
  EXPECT_THAT(notices, ElementsAre(EndsWith("trained from now on: c, d, e, f, g and 1 more"),
                                   "added to the held-out files: u"));
  // Where the last rows of all files are held out, these are others now.
  *manifest.mutable_job()->mutable_data_files() = FilesOf({"a:10"});
  EXPECT_EQ(check(FilesOf({"a:10", "b:20"})), "");
  EXPECT_THAT(notices, ElementsAre(HasSubstr("rows that were are trained")));

  EXPECT_EQ(CheckDataFiles(job_, manifest, &notices),
            absl::FailedPreconditionError("the data can't be compared with the checkpoint's"));
}

TEST_F(ResumeTest, OtherInstructionsAndBuildsAreReported) {
  const Job job = JobWith({"cluster.cpu_isa=AVX2"});
  const auto notices = [&](const char* isa, const char* build) {
    CheckpointManifest manifest = ManifestAt(1, 9);
    manifest.set_cpu_isa(isa);
    manifest.set_build(build);
    EXPECT_TRUE(store_.Commit(manifest).ok());
    const auto point = FindResumePoint(store_, job, kBuild, "");
    EXPECT_TRUE(point.ok()) << point.status();
    return point->notices;
  };
  EXPECT_THAT(notices("AVX2", kBuild), IsEmpty());
  EXPECT_THAT(notices("AUTO", ""), IsEmpty());  // It is not known.
  EXPECT_THAT(notices("AVX512", kBuild),
              ElementsAre("checkpoint step-000000009 was made with cpu_isa AVX512 (this run: "
                          "AVX2)"));
  EXPECT_THAT(notices("AVX512", "1.0"),
              ElementsAre("checkpoint step-000000009 was made with cpu_isa AVX512 (this run: "
                          "AVX2), build 1.0 (this run: 2.0)"));
}

TEST_F(ResumeTest, TheInstructionsAreThoseThatAreUsed) {
  EXPECT_EQ(ResolvedCpuIsa(JobWith({"cluster.cpu_isa=AVX2"})), "AVX2");
  EXPECT_EQ(ResolvedCpuIsa(JobWith({"cluster.cpu_isa=AVX512"})), "AVX512");
  EXPECT_EQ(ResolvedCpuIsa(job_), CpuHasAvx512() ? "AVX512" : "AVX2");
}

TEST_F(ResumeTest, ADirectoryInUse) {
  Write(1, "");
  EXPECT_EQ(CheckUnused(store_).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(CheckUnused(store_).message(), HasSubstr("job 'j'"));
}

}  // namespace
}  // namespace thermocline
