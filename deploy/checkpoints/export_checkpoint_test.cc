#include "deploy/checkpoints/export_checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "deploy/checkpoints/testing/exported_checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDirectory[] = "/checkpoints";

// A safetensors file, taken apart.
struct Parsed {
  nlohmann::json header;
  std::string data;

  std::vector<uint64_t> Shape(const std::string& name) const { return header.at(name).at("shape"); }
  template <typename T>
  std::vector<T> Numbers(const std::string& name) const {
    const std::vector<uint64_t> at = header.at(name).at("data_offsets");
    std::vector<T> numbers((at[1] - at[0]) / sizeof(T));
    std::memcpy(numbers.data(), data.data() + at[0], at[1] - at[0]);
    return numbers;
  }
};

Parsed Parse(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
  return {nlohmann::json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
}

class ExportCheckpointTest : public testing::Test {
 protected:
  ExportCheckpointTest()
      : manifest_(MakeExportedCheckpoint(&disk_, kDirectory, &rows_)),
        tables_(ResolveTables(manifest_.job())),
        path_(testing::TempDir() + "/model.safetensors") {
    std::filesystem::remove(path_);
  }
  absl::StatusOr<ExportedCheckpoint> Export(bool optimizer_state = false) {
    ExportOptions options;
    options.optimizer_state = optimizer_state;
    return ExportCheckpoint(&disk_, kDirectory, manifest_, path_, options);
  }

  SimulatedDisk disk_;
  TestRows rows_;
  const CheckpointManifest manifest_;
  const JobTables tables_;
  const std::string path_;
};

TEST_F(ExportCheckpointTest, SparseTablesAreKeysRowsAndState) {
  const auto exported = Export(/*optimizer_state=*/true);
  ASSERT_TRUE(exported.ok()) << exported.status();
  const Parsed parsed = Parse(path_);
  EXPECT_EQ(std::filesystem::file_size(path_), exported->bytes);
  const auto keys = parsed.Numbers<Key>("C1.keys");
  const auto rows = parsed.Numbers<float>("C1.rows"),
             state = parsed.Numbers<float>("C1.optimizer_state");
  EXPECT_THAT(parsed.Shape("C1.keys"), ElementsAre(100));
  EXPECT_THAT(parsed.Shape("C1.rows"), ElementsAre(100, 4));
  EXPECT_THAT(parsed.Shape("C1.optimizer_state"), ElementsAre(100, 4));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto found = rows_.find(RowKeyOf(TableId(0), keys[i]));
    ASSERT_NE(found, rows_.end());
    for (size_t f = 0; f < 8; ++f) {
      EXPECT_EQ(f < 4 ? rows[4 * i + f] : state[4 * i + f - 4], found->second.values[f]);
    }
  }
  EXPECT_THAT(parsed.Shape("C2.keys"), ElementsAre(0));
  EXPECT_THAT(parsed.Shape("C2.rows"), ElementsAre(0, 4));
  EXPECT_THAT(parsed.Shape("C2.optimizer_state"), ElementsAre(0, 1));
}

TEST_F(ExportCheckpointTest, DenseTensorsHaveTheirShape) {
  ASSERT_TRUE(Export().ok());
  const Parsed parsed = Parse(path_);
  EXPECT_THAT(parsed.Shape("bottom.0.weight"), ElementsAre(3, 100));
  EXPECT_THAT(parsed.Shape("bottom.0.bias"), ElementsAre(100));
  EXPECT_THAT(parsed.Shape("top.1.bias"), ElementsAre(1));
  EXPECT_FALSE(parsed.header.contains("C1.optimizer_state"));
  for (const DenseTable& tensor : tables_.dense) {
    const auto floats = parsed.Numbers<float>(tensor.layout.name);
    ASSERT_EQ(floats.size(), static_cast<size_t>(tensor.num_floats()));
    std::vector<float> row(static_cast<size_t>(tensor.layout.row_floats()));
    for (size_t i = 0; i < floats.size(); ++i) {
      const Key block = i / kDenseBlockFloats;
      const auto found = rows_.find(RowKeyOf(tensor.layout.id, block));
      if (found != rows_.end()) {
        row = found->second.values;
      } else {
        EXPECT_EQ(tensor.layout.name, "bottom.1.weight");
        InitialRow(tensor.layout, 5, block, absl::MakeSpan(row));
      }
      EXPECT_EQ(floats[i], row[i % kDenseBlockFloats]) << tensor.layout.name << " " << i;
    }
  }
}

TEST_F(ExportCheckpointTest, AWeightOfOneInputIsAMatrixStill) {
  SimulatedDisk disk;
  TestRows rows;
  const CheckpointManifest manifest =
      MakeExportedCheckpoint(&disk, kDirectory, &rows, {"data.num_dense=1"});
  ASSERT_TRUE(ExportCheckpoint(&disk, kDirectory, manifest, path_, {}).ok());
  const Parsed parsed = Parse(path_);
  EXPECT_THAT(parsed.Shape("bottom.0.weight"), ElementsAre(1, 100));
  EXPECT_THAT(parsed.Shape("bottom.0.bias"), ElementsAre(100));
}

TEST_F(ExportCheckpointTest, TellsWhereItComesFrom) {
  const auto exported = Export();
  ASSERT_TRUE(exported.ok());
  Digest digest;
  for (const auto& [key, row] : rows_) digest.Add(RowDigest(key.table, key.key, row.values));
  EXPECT_TRUE(exported->verified.model_digest == digest);
  const Parsed parsed = Parse(path_);
  std::map<std::string, std::string> metadata = parsed.header.at("__metadata__");
  EXPECT_EQ(metadata["job_id"], "test-1");
  EXPECT_EQ(metadata["step"], "9");
  EXPECT_EQ(metadata["samples"], "80");
  EXPECT_EQ(metadata["model_digest"].size(), 32u);
  EXPECT_TRUE(ParseJob(metadata["job"], "metadata", {}).ok());
}

TEST_F(ExportCheckpointTest, SaysWhatComputingWithItTakes) {
  ASSERT_TRUE(Export().ok());
  const auto metadata = Parse(path_).header.at("__metadata__");
  const auto model = nlohmann::json::parse(metadata.at("model").get<std::string>());
  const auto expected = nlohmann::json::parse(R"({
    "seed": 5,
    "data": {"format": "DLRM_NPY", "num_dense": 3, "test_share": 0.0},
    "features": [{"name": "C1", "table": "C1", "pooling": "SUM", "columns": 1,
                  "padding_id": null},
                 {"name": "C2", "table": "C2", "pooling": "SUM", "columns": 1,
                  "padding_id": null}],
    "tables": [{"name": "C1", "id": 0, "dim": 4, "init_scale": 0.009999999776482582},
               {"name": "C2", "id": 1, "dim": 4, "init_scale": 0.009999999776482582}],
    "bottom": [3, 100, 4],
    "top": [7, 7, 1],
    "layers": [{"name": "bottom", "input": ["numeric"], "mlp": {"units": [100, 4]}},
               {"name": "pairs", "input": ["bottom", "categorical"], "dot": {"keep_first": true}},
               {"name": "top", "input": ["pairs"], "mlp": {"units": [7, 1], "last": "LINEAR"}}],
    "tasks": [{"label": "label", "input": ["top"]}]
  })");
  EXPECT_EQ(model, expected);
  EXPECT_EQ(static_cast<float>(0.009999999776482582), 0.01f);
}

// What the script keeps is bytes of its own; the tables are as ever.
TEST_F(ExportCheckpointTest, TheStateOfAScriptIsAFileOfItsOwn) {
  SimulatedDisk disk;
  TestRows rows;
  const CheckpointManifest manifest =
      MakeExportedCheckpoint(&disk, kDirectory, &rows, {"worker.command=['python3', 'train.py']"},
                             {"dlrm", "dense_optimizer"});
  const auto exported = ExportCheckpoint(&disk, kDirectory, manifest, path_, {});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->script_state, testing::TempDir() + "/model.state.safetensors");
  EXPECT_EQ(exported->script_state_bytes, kTestStateBytes);
  std::ifstream file(exported->script_state, std::ios::binary);
  std::stringstream state;
  state << file.rdbuf();
  EXPECT_EQ(state.str(), std::string(kTestStateBytes, 's'));
  EXPECT_EQ(exported->tensors, 4u);
  const Parsed parsed = Parse(path_);
  EXPECT_THAT(parsed.Shape("C1.keys"), ElementsAre(100));
  const auto model =
      nlohmann::json::parse(parsed.header.at("__metadata__").at("model").get<std::string>());
  EXPECT_EQ(model["script"], "python3 train.py");
  EXPECT_FALSE(model.contains("bottom"));
}

TEST_F(ExportCheckpointTest, AStateThatTheCheckpointLacksIsNotLeftBesideIt) {
  const std::string state = testing::TempDir() + "/model.state.safetensors";
  const auto export_script = [&](bool has_state, const std::string& path) {
    SimulatedDisk disk;
    TestRows rows;
    const CheckpointManifest manifest =
        MakeExportedCheckpoint(&disk, kDirectory, &rows, {"worker.command=['python3', 'train.py']"},
                               {"dlrm", "dense_optimizer"}, has_state);
    return ExportCheckpoint(&disk, kDirectory, manifest, path, {});
  };
  const auto exported = export_script(true, path_);
  ASSERT_TRUE(exported.ok()) << exported.status();
  const auto refused = export_script(false, path_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(state));
  EXPECT_TRUE(std::filesystem::exists(state)) << "it may be a file of the user's";
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  std::filesystem::remove(state);
  const auto without = export_script(false, path_);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->script_state, "");
  EXPECT_FALSE(std::filesystem::exists(state));
}

// A path that can't get its name is a folder.
TEST_F(ExportCheckpointTest, WithoutTheModelItsStateGetsNoName) {
  SimulatedDisk disk;
  TestRows rows;
  const CheckpointManifest manifest =
      MakeExportedCheckpoint(&disk, kDirectory, &rows, {"worker.command=['python3', 'train.py']"},
                             {"dlrm", "dense_optimizer"});
  const std::string folder = testing::TempDir() + "/taken";
  std::filesystem::create_directories(folder + "/model.safetensors");
  const auto exported =
      ExportCheckpoint(&disk, kDirectory, manifest, folder + "/model.safetensors", {});
  EXPECT_EQ(exported.status().code(), absl::StatusCode::kUnavailable) << exported.status();
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, ElementsAre("model.safetensors"));
}

TEST_F(ExportCheckpointTest, TensorsFollowEachOtherAndAreAligned) {
  ASSERT_TRUE(Export(/*optimizer_state=*/true).ok());
  const Parsed parsed = Parse(path_);
  std::map<uint64_t, uint64_t> ranges;
  for (const auto& [name, entry] : parsed.header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<uint64_t> at = entry.at("data_offsets");
    EXPECT_EQ(at[0] % (entry.at("dtype") == "U64" ? 8 : 4), 0u);
    if (at[0] < at[1]) ranges[at[0]] = at[1];
  }
  uint64_t end = 0;
  for (const auto& [from, to] : ranges) {
    EXPECT_EQ(from, end);
    end = to;
  }
  EXPECT_EQ(end, parsed.data.size());
}

TEST_F(ExportCheckpointTest, LeavesNothingWhereItFails) {
  const std::string file = std::string(kDirectory) + "/step-000000009/generation-1-server-0.rows";
  const std::string good = disk_.Content(file);
  std::string bad = good;
  bad[20] = static_cast<char>(bad[20] ^ 1);
  disk_.SetContent(file, bad);
  const absl::Status damaged = Export().status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(file));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  disk_.SetContent(file, good);
  EXPECT_EQ(
      ExportCheckpoint(&disk_, kDirectory, manifest_, "/no/such/folder/x", {}).status().code(),
      absl::StatusCode::kUnavailable);
}

TEST_F(ExportCheckpointTest, AJobThatIsNotTheTablesIsRefused) {
  for (const bool missing : {true, false}) {
    CheckpointManifest manifest = manifest_;
    if (missing) {
      manifest.clear_job();
    } else {
      manifest.mutable_job()->mutable_layer(0)->mutable_mlp()->set_units(0, 99);
    }
    EXPECT_EQ(ExportCheckpoint(&disk_, kDirectory, manifest, path_, {}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace thermocline
