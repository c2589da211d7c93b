#include "common/checkpoint/checkpoint_manifest.h"

#include <functional>
#include <string>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

CheckpointManifest SmallManifest() {
  CheckpointManifest manifest;
  manifest.set_format_version(2);
  manifest.set_job_id("j");
  manifest.set_generation(2);
  manifest.set_step(99);
  manifest.set_num_servers(1);
  TableSpec* table = manifest.add_tables();
  table->set_id(4);
  table->set_name("C1");
  table->set_dim(2);
  table->mutable_optimizer()->mutable_sgd();
  CheckpointShard* shard = manifest.add_shards();
  shard->set_base_step(49);
  for (const char* path : {"step-000000049/generation-2-server-0.1.sst",
                           "step-000000099/generation-2-server-0.1.rows"}) {
    CheckpointFile* file = shard->add_files();
    file->set_path(path);
    file->set_bytes(4096);
    file->set_crc32c(0x12345678);
    file->set_rows(7);
  }
  return manifest;
}

TEST(CheckpointNameTest, NamesAndBack) {
  EXPECT_EQ(CheckpointName(Step(1000)), "step-000001000");
  EXPECT_EQ(CheckpointName(Step(1234567890123)), "step-1234567890123");
  EXPECT_EQ(OldCheckpointName({3, Step(1000)}), "epoch-3-step-1000");
  for (const char* name : {"step-000001000", "epoch-3-step-1000", "step-1234567890123"}) {
    ASSERT_TRUE(ParseCheckpointName(name).has_value()) << name;
  }
  EXPECT_EQ(ParseCheckpointName("step-000001000")->step, Step(1000));
  EXPECT_EQ(ParseCheckpointName("step-000001000")->generation, std::nullopt);
  EXPECT_EQ(ParseCheckpointName("epoch-3-step-1000")->step, Step(1000));
  EXPECT_EQ(ParseCheckpointName("epoch-3-step-1000")->generation, 3u);
  EXPECT_EQ(ParseShortName("step-1000"), Step(1000));
  EXPECT_EQ(ParseShortName("step-0000000001000"), Step(1000));
  for (const char* bad : {"",
                          "epoch-",
                          "epoch-3",
                          "epoch-3-step-",
                          "epoch-3-step--1",
                          "epoch-03-step-1",
                          "epoch-3-step-1 ",
                          "epoch--step-1",
                          "epoch-3-step-+1",
                          "epoch-3-step-01",
                          "epoch-step-1",
                          "xepoch-3-step-1",
                          "epoch-3-step-1/..",
                          "epoch-3-step-9223372036854775808",
                          "step-",
                          "step-1",
                          "step-00000001",
                          "step-0000000001",
                          "step--00000001",
                          "step-+00000001",
                          "step-00000000x",
                          "step-000000001 ",
                          "xstep-000000001",
                          "step-000000001/..",
                          "step-9223372036854775808"}) {
    EXPECT_FALSE(ParseCheckpointName(bad).has_value()) << bad;
  }
}

TEST(CheckpointNameTest, FilesOfTwoGenerationsInOneFolderHaveTheirOwnNames) {
  const CheckpointId id{3, Step(1000)};
  const RowsFileWriterId writer{ServerIndex(2), 4};
  EXPECT_EQ(RowsFilePath(id, {ServerIndex(2)}), "step-000001000/generation-3-server-2.rows");
  EXPECT_EQ(RowsFilePath(id, {ServerIndex(2)}, 1), "step-000001000/generation-3-server-2-1.rows");
  EXPECT_EQ(RowsFilePath(id, writer), "step-000001000/generation-3-server-2.4.rows");
  EXPECT_EQ(RowsFilePath(id, writer, 11), "step-000001000/generation-3-server-2-11.4.rows");
  EXPECT_NE(RowsFilePath({30, Step(1000)}, writer), RowsFilePath(id, writer));
  const CheckpointFolder folder = *ParseCheckpointName("step-000001000");
  EXPECT_EQ(GenerationOfFile(folder, "generation-3-server-2.4.rows"), 3u);
  EXPECT_EQ(GenerationOfFile(folder, "generation-3-server-2.4.sst"), 3u);
  for (const char* other : {"server-2.4.sst", "MANIFEST", "MANIFEST.tmp", "generation-", "",
                            "generation-3", "generation-03-server-2.sst", "generation--3-s.sst",
                            "generation-x-server-2.sst", "Generation-3-server-2.sst"}) {
    EXPECT_NE(GenerationOfFile(folder, other), 3u) << other;
  }
  EXPECT_EQ(GenerationOfFile(folder, "server-2.4.sst"), std::nullopt);
  EXPECT_EQ(GenerationOfFile(*ParseCheckpointName("epoch-5-step-9"), "server-2.4.sst"), 5u);
}

// docs/formats.md shows these bytes.
TEST(ManifestTest, GoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeManifest(SmallManifest())),
            "54636c6e4d6e6674"
            "02000000"
            "8f000000"
            "9200325a"
            "080212016a180220c60130014a0c080412024331180222020a00527310621a360a2a"
            "737465702d3030303030303034392f67656e65726174696f6e2d322d736572766572"
            "2d302e312e7373741080201d7856341220071a370a2b737465702d30303030303030"
            "39392f67656e65726174696f6e2d322d7365727665722d302e312e726f7773108020"
            "1d785634122007");
}

// The same of an earlier program, whose folders and files had other names.
TEST(ManifestTest, ManifestsOfEarlierProgramsStayReadable) {
  const std::string bytes = absl::HexStringToBytes(
      "54636c6e4d6e6674"
      "01000000"
      "72000000"
      "3696b5fc"
      "080112016a180220c60130014a0c080412024331180222020a00525610621a280a1c"
      "65706f63682d322d737465702d34392f7365727665722d302e7373741080201d7856"
      "341220071a280a1c65706f63682d322d737465702d39392f7365727665722d302e73"
      "73741080201d785634122007");
  const auto manifest = DecodeManifest(bytes, "M");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  CheckpointManifest expected = SmallManifest();
  expected.set_format_version(1);
  auto* files = expected.mutable_shards(0)->mutable_files();
  files->at(0).set_path("epoch-2-step-49/server-0.sst");
  files->at(1).set_path("epoch-2-step-99/server-0.sst");
  EXPECT_EQ(manifest->SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(EncodeManifest(*manifest), bytes);
  EXPECT_EQ(ManifestVersionOf(expected), 1u);
}

// Programs that know SST files alone know version 1 alone. Some have written other rows files under
// that version.
TEST(ManifestTest, TheVersionIsTheFirstThatKnowsTheFiles) {
  CheckpointManifest manifest = SmallManifest();
  EXPECT_EQ(ManifestVersionOf(manifest), 2u);
  EXPECT_EQ(EncodeManifest(manifest)[8], 2);
  manifest.set_format_version(1);
  const auto read = DecodeManifest(EncodeManifest(manifest), "M");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), manifest.SerializeAsString());
  manifest.mutable_shards(0)->mutable_files()->RemoveLast();
  EXPECT_EQ(ManifestVersionOf(manifest), 1u);
}

TEST(ManifestTest, WhoseItIsCanBeReadOfAnyVersion) {
  CheckpointManifest manifest = SmallManifest();
  manifest.set_format_version(7);
  const std::string bytes = EncodeFrame({kManifestFormat.magic, 7}, manifest.SerializeAsString());
  EXPECT_EQ(DecodeManifest(bytes, "M").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(ReadManifestId(bytes).has_value());
  EXPECT_TRUE(*ReadManifestId(bytes) == (CheckpointId{2, Step(99)}));
  std::string damaged = bytes;
  damaged[30] = static_cast<char>(damaged[30] ^ 1);
  EXPECT_FALSE(ReadManifestId(damaged).has_value());
  EXPECT_FALSE(ReadManifestId("").has_value());
}

TEST(ManifestTest, TheBestIsThatOfOneGeneration) {
  EvaluationState state;
  EXPECT_FALSE(BestCheckpointOf(state).has_value());
  state.set_best_checkpoint("epoch-4-step-9");
  EXPECT_TRUE(*BestCheckpointOf(state) == (CheckpointId{4, Step(9)}));
  state.set_best_checkpoint("step-000000009");
  state.set_best_generation(5);
  EXPECT_TRUE(*BestCheckpointOf(state) == (CheckpointId{5, Step(9)}));
}

TEST(ManifestTest, GivesTheManifestBack) {
  const CheckpointManifest manifest = EmptyManifest({7, Step(12)}, 3);
  const auto again = DecodeManifest(EncodeManifest(manifest), "M");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ(TablesOf(*again), TestTables());
}

TEST(ManifestTest, EveryFlippedBitAndEveryCutIsFound) {
  const std::string good = EncodeManifest(EmptyManifest({7, Step(12)}, 3));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeManifest(bad, "M").status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_EQ(DecodeManifest(good.substr(0, bytes), "M").status().code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST(ManifestTest, WhatContradictsItselfIsNamed) {
  struct Case {
    std::function<void(CheckpointManifest*)> change;
    absl::StatusCode code;
    const char* message;
  };
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  const auto path = [](const char* path) {
    return
        [path](CheckpointManifest* m) { m->mutable_shards(0)->mutable_files(0)->set_path(path); };
  };
  const Case cases[] = {
      {[](auto* m) { m->set_format_version(3); }, absl::StatusCode::kFailedPrecondition,
       "format version 3; this program knows version 2"},
      {[](auto* m) { m->set_format_version(0); }, absl::StatusCode::kFailedPrecondition,
       "format version 0"},
      {[](auto* m) { m->set_step(-1); }, kDataLoss, "step -1"},
      {[](auto* m) { m->set_step(0xffffffff); }, kDataLoss, "step 4294967295"},
      {[](auto* m) { m->set_job_id("\n"); }, kDataLoss, "job id"},
      {[](auto* m) { m->set_num_servers(2); }, kDataLoss, "1 shards of 2 servers"},
      {[](auto* m) { m->set_num_servers(0); }, kDataLoss, "1 shards of 0 servers"},
      {[](auto* m) { m->mutable_shards(0)->set_server_index(1); }, kDataLoss,
       "shard 0 is of server 1"},
      {[](auto* m) { m->mutable_shards(0)->set_base_step(99); }, kDataLoss,
       "the part of server 0 builds on step 99"},
      {[](auto* m) { m->mutable_shards(0)->set_base_step(-2); }, kDataLoss, "step -2"},
      {[](auto* m) { *m->add_tables() = m->tables(0); }, kDataLoss, "table id 4 stands twice"},
      {[](auto* m) { m->mutable_tables(0)->set_dim(0); }, kDataLoss, "table 'C1'"},
      {path("step-000000099/generation-2-server-0.1.rows"), kDataLoss, "stands twice"},
      {path("step-000000049/generation-3-server-0.1.sst"), kDataLoss, "of a later generation"},
      {path("epoch-3-step-49/server-0.sst"), kDataLoss, "of a later generation"},
      {path("step-000000049/server-0.1.sst"), kDataLoss, "no rows file's path"},
      {path("step-49/generation-2-server-0.1.sst"), kDataLoss, "no rows file's path"},
      {path("step-000000049/generation-2-/../x.sst"), kDataLoss, "no rows file's path"},
      {path("/etc/x.sst"), kDataLoss, "'/etc/x.sst' is no rows file's path"},
      {path("epoch-2-step-49/../x.sst"), kDataLoss, "no rows file's path"},
      {path("epoch-2-step-49/.sst"), kDataLoss, "no rows file's path"},
      {path("epoch-2-step-49/.rows"), kDataLoss, "no rows file's path"},
      {path("epoch-2-step-49/x.sst.tmp"), kDataLoss, "no rows file's path"},
      {path("epoch-2-step-49/MANIFEST"), kDataLoss, "no rows file's path"},
      {path("../epoch-2-step-49/x.sst"), kDataLoss, "no rows file's path"},
      {path(""), kDataLoss, "no rows file's path"},
  };
  ASSERT_TRUE(CheckManifest(SmallManifest()).ok());
  for (const Case& c : cases) {
    CheckpointManifest manifest = SmallManifest();
    c.change(&manifest);
    const std::string bytes = EncodeFrame(kManifestFormat, manifest.SerializeAsString());
    const absl::Status status = DecodeManifest(bytes, "M").status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'M'"));
  }
  EXPECT_EQ(DecodeManifest(EncodeFrame(kManifestFormat, "\xff"), "M").status().code(), kDataLoss);
}

TEST(ManifestTest, RowLimitsAreThoseOfAllServersAndPartOfItsTables) {
  CheckpointManifest manifest = SmallManifest();
  manifest.set_num_servers(2);
  manifest.mutable_tables(0)->set_max_rows(10);
  manifest.add_shards()->set_server_index(1);
  manifest.mutable_shards(1)->set_base_step(-1);
  ASSERT_TRUE(CheckManifest(manifest).ok()) << CheckManifest(manifest);  // An earlier program's.
  EXPECT_EQ(TablesOf(manifest)[0].OldestKept(Step(99)), 0u);
  RowLimit* limit = manifest.mutable_shards(0)->add_row_limits();
  limit->set_table(4);
  limit->set_oldest_kept(100);
  EXPECT_EQ(CheckManifest(manifest).code(), absl::StatusCode::kDataLoss);
  *manifest.mutable_shards(1)->add_row_limits() = *limit;
  ASSERT_TRUE(CheckManifest(manifest).ok()) << CheckManifest(manifest);
  EXPECT_EQ(TablesOf(manifest)[0].OldestKept(Step(99)), 100u);
  TableLayout without = TablesOf(manifest)[0];
  without.forgotten_before = 0;
  EXPECT_EQ(DescribeDifference(without, TablesOf(manifest)[0]), "");
  manifest.mutable_shards(1)->mutable_row_limits(0)->set_oldest_kept(99);
  EXPECT_EQ(CheckManifest(manifest).code(), absl::StatusCode::kDataLoss);
  for (CheckpointShard& shard : *manifest.mutable_shards()) {
    shard.mutable_row_limits(0)->set_oldest_kept(101);  // A later step's.
  }
  EXPECT_EQ(CheckManifest(manifest).code(), absl::StatusCode::kDataLoss);
  for (CheckpointShard& shard : *manifest.mutable_shards()) {
    shard.mutable_row_limits(0)->set_oldest_kept(7);
    shard.mutable_row_limits(0)->set_table(5);  // There is none.
  }
  EXPECT_EQ(CheckManifest(manifest).code(), absl::StatusCode::kDataLoss);
}

TEST(ManifestTest, WhereRowsMayBeHeldIsNoShardOfWhatTheyAre) {
  const TableLayout here = TestTables()[0];
  TableLayout there = here;
  there.memory_budget_bytes = 1 << 20;
  EXPECT_EQ(DescribeRowDifference(here, there), "");
  there.dim = 4;
  EXPECT_EQ(DescribeRowDifference(here, there), "table 'small': dim is 3 here, 4 there");
}

TEST(JobStateTest, GivesTheStateBackOrAnError) {
  JobState state;
  state.set_format_version(1);
  state.set_job_id("j");
  state.set_generation(3);
  state.set_base_checkpoint("epoch-2-step-99");
  const std::string good = EncodeJobState(state);
  const auto again = DecodeJobState(good, "S");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), state.SerializeAsString());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeJobState(bad, "S").status().code(), absl::StatusCode::kDataLoss) << bit;
  }
  state.set_base_checkpoint("../elsewhere");
  EXPECT_EQ(DecodeJobState(EncodeJobState(state), "S").status().code(),
            absl::StatusCode::kDataLoss);
  state.set_format_version(2);
  EXPECT_EQ(
      DecodeJobState(EncodeFrame(kJobStateFormat, state.SerializeAsString()), "S").status().code(),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace thermocline
