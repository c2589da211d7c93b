// A checkpoint's rows are loaded by any number of threads, and all of them or none.
#include "server/core/base_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "server/core/testing/checkpointed_server.h"
#include "server/core/testing/core_fixtures.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using testing::HasSubstr;
using testing_core::CheckpointedServer;
using testing_core::ComposeManifest;
using testing_core::MakeConfig;
using testing_core::RandomChunk;

// A checkpoint of two servers.
class BaseCheckpointTest : public testing::Test {
 protected:
  static constexpr uint32_t kServers = 2;
  static constexpr Key kKeys = 20000;

  BaseCheckpointTest() {
    std::vector<CheckpointShard> shards;
    for (uint32_t i = 0; i < kServers; ++i) {
      config_ = MakeConfig(1);
      config_.num_servers = kServers;
      config_.server_index = ServerIndex(i);
      CheckpointedServer server(&disk_, config_);
      EXPECT_TRUE(server.Configure().ok());
      EXPECT_TRUE(server.Push(RandomChunk(0, 0, 0, 1, i, kServers, kKeys)).ok());
      EXPECT_TRUE(server.Checkpoint(CheckpointRequest::NAME_CUT, 0).ok());
      shards.push_back(server.WriteCut(0).shard());
      digest_.Add(server.ComputeDigest());
      rows_ += server.Rows().size();
    }
    config_.checkpoint_directory = testing_core::kCheckpoints;
    manifest_ =
        *ComposeManifest(CheckpointStore(&disk_, config_.checkpoint_directory), config_, 0, shards);
  }

  // Loads the rows of one of `num_servers`.
  absl::Status Load(uint32_t server, uint32_t num_servers, int num_threads, TableSet* tables) {
    config_.num_servers = num_servers;
    config_.server_index = ServerIndex(server);
    return LoadBaseRows(&disk_, config_, manifest_, num_threads, tables, [this](uint64_t rows) {
      return (loaded_ += rows) > stop_after_ ? absl::CancelledError("stopped") : absl::OkStatus();
    });
  }

  SimulatedDisk disk_;
  ServerConfig config_;
  CheckpointManifest manifest_;
  Digest digest_;
  uint64_t rows_ = 0;
  std::atomic<uint64_t> loaded_{0};
  uint64_t stop_after_ = UINT64_MAX;
};

TEST_F(BaseCheckpointTest, AnyNumberOfThreadsAndServersLoadsTheSameRows) {
  ASSERT_GT(rows_, 0u);
  for (const uint32_t num_servers : {1, 2, 3}) {
    for (const int num_threads : {1, 2, 7}) {
      loaded_ = 0;
      Digest digest;
      for (uint32_t server = 0; server < num_servers; ++server) {
        TableSet tables(config_.tables, config_.seed);
        const absl::Status status = Load(server, num_servers, num_threads, &tables);
        ASSERT_TRUE(status.ok()) << status;
        digest.Add(*tables.ComputeDigest());
      }
      EXPECT_EQ(loaded_, rows_);
      EXPECT_TRUE(digest == digest_) << num_servers << " servers, " << num_threads << " threads";
    }
  }
}

TEST_F(BaseCheckpointTest, ProgressEndsItOnAllThreads) {
  for (const int num_threads : {1, 4}) {
    loaded_ = 0;
    stop_after_ = 100;
    TableSet tables(config_.tables, config_.seed);
    EXPECT_EQ(Load(0, 1, num_threads, &tables).code(), absl::StatusCode::kCancelled);
    EXPECT_LT(loaded_, rows_);
  }
}

TEST_F(BaseCheckpointTest, ADamagedFileIsNamed) {
  const std::string path = manifest_.shards(1).files(0).path();
  ASSERT_TRUE(disk_.Remove(config_.checkpoint_directory + "/" + path).ok());
  for (const int num_threads : {1, 4}) {
    TableSet tables(config_.tables, config_.seed);
    const absl::Status status = Load(0, 1, num_threads, &tables);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

// No partition of such a file is looked for, so nothing would be loaded, without an error.
TEST_F(BaseCheckpointTest, FilesWithTheRowsOfAnotherServerAreRefused) {
  manifest_.mutable_shards(0)->mutable_files()->Swap(manifest_.mutable_shards(1)->mutable_files());
  for (const int num_threads : {1, 4}) {
    TableSet tables(config_.tables, config_.seed);
    const absl::Status status = Load(0, kServers, num_threads, &tables);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("server 0"));
  }
}

// What another run's checkpoint brings into a table, by the table's name and the key.
using RowsByName = std::map<std::pair<std::string, Key>, std::pair<std::vector<float>, uint32_t>>;

class InitCheckpointTest : public BaseCheckpointTest {
 protected:
  // A job of its own, whose tables have the same names and other ids, and one table more.
  InitCheckpointTest() {
    EXPECT_TRUE(CheckpointStore(&disk_, config_.checkpoint_directory).Commit(manifest_).ok());
    config_.job_id = "another";
    config_.seed += 1;
    config_.init_directory = config_.checkpoint_directory;
    config_.init_checkpoint = CheckpointName(Step(0));
    std::vector<TableLayout>& tables = config_.tables;
    std::reverse(tables.begin(), tables.end());
    tables.insert(tables.begin() + 1, tables[0]);
    tables[1].name = "new";
    for (size_t i = 0; i < tables.size(); ++i) tables[i].id = TableId(static_cast<uint32_t>(i));
  }

  void AddRows(const TableSet& tables, Step changed, RowsByName* rows) {
    for (size_t i = 0; i < tables.size(); ++i) {
      const EmbeddingTable& table = tables.at(i).table;
      ASSERT_TRUE(
          table
              .VisitRows(
                  [&](Key key, absl::Span<const float> row, uint32_t count, Step last_change) {
                    EXPECT_EQ(last_change, changed);
                    EXPECT_TRUE(
                        rows->emplace(std::pair(table.layout().name, key),
                                      std::pair(std::vector<float>(row.begin(), row.end()), count))
                            .second);
                  })
              .ok());
    }
  }
};

TEST_F(InitCheckpointTest, TablesAreMatchedByTheirNames) {
  RowsByName expected;
  {
    ServerConfig before = MakeConfig(1);
    TableSet tables(before.tables, before.seed);
    before.checkpoint_directory = config_.checkpoint_directory;
    ASSERT_TRUE(LoadBaseRows(&disk_, before, manifest_, 2, &tables, [](uint64_t) {
                  return absl::OkStatus();
                }).ok());
    AddRows(tables, Step(0), &expected);
  }
  ASSERT_EQ(expected.size(), rows_);
  const auto init = ReadInitManifest(&disk_, config_);
  ASSERT_TRUE(init.ok()) << init.status();
  for (const uint32_t num_servers : {1, 2, 3}) {
    for (const int num_threads : {1, 3}) {
      RowsByName found;
      for (uint32_t server = 0; server < num_servers; ++server) {
        config_.num_servers = num_servers;
        config_.server_index = ServerIndex(server);
        TableSet tables(config_.tables, config_.seed);
        const absl::Status loaded = LoadInitRows(&disk_, config_, *init, num_threads, &tables,
                                                 [](uint64_t) { return absl::OkStatus(); });
        ASSERT_TRUE(loaded.ok()) << loaded;
        AddRows(tables, kNoStep, &found);
      }
      EXPECT_EQ(found, expected) << num_servers << " servers, " << num_threads << " threads";
    }
  }
}

TEST_F(InitCheckpointTest, FirstOrderWeightsBeginAnewOrAreDropped) {
  const auto load = [&](const std::string& directory, const CheckpointManifest& init) {
    config_.init_directory = directory;
    TableSet tables(config_.tables, config_.seed);
    const absl::Status loaded =
        LoadInitRows(&disk_, config_, init, 2, &tables, [](uint64_t) { return absl::OkStatus(); });
    EXPECT_TRUE(loaded.ok()) << loaded;
    RowsByName found;
    AddRows(tables, kNoStep, &found);
    return found;
  };
  auto init = ReadInitManifest(&disk_, config_);
  ASSERT_TRUE(init.ok()) << init.status();
  const RowsByName plain = load(config_.init_directory, *init);
  ASSERT_FALSE(plain.empty());
  const std::vector<TableLayout> before = config_.tables;
  for (TableLayout& table : config_.tables) {
    FirstOrderWeight& weight = table.first_order.emplace();
    weight.optimizer.kind = OptimizerKind::kAdagrad;
    weight.optimizer.initial_accumulator = 0.75f;
    weight.init_scale = 0.5f;
    ++table.dim;
  }
  init = ReadInitManifest(&disk_, config_);
  ASSERT_TRUE(init.ok()) << init.status();
  const RowsByName with = load(config_.init_directory, *init);
  ASSERT_EQ(with.size(), plain.size());
  for (const auto& [id, row] : plain) {
    const std::string& name = id.first;
    const auto table = std::find_if(before.begin(), before.end(),
                                    [&name](const TableLayout& t) { return t.name == name; });
    std::vector<float> expected = row.first;
    if (!expected.empty()) {
      expected.insert(expected.begin() + table->dim, 0.5f);
      expected.push_back(0.75f);
    }
    EXPECT_EQ(with.at(id).first, expected) << id.first << ", " << id.second;
    EXPECT_EQ(with.at(id).second, row.second);
    if (expected.empty()) continue;
    // And back: what the job lacks is dropped.
    const auto here = std::find_if(config_.tables.begin(), config_.tables.end(),
                                   [&name](const TableLayout& t) { return t.name == name; });
    std::vector<float> carried(row.first.size());
    CarryRow(*here, expected, *table, config_.seed, id.second, absl::MakeSpan(carried));
    EXPECT_EQ(carried, row.first);
    carried.resize(expected.size());
    CarryRow(*here, expected, *here, config_.seed, id.second, absl::MakeSpan(carried));
    EXPECT_EQ(carried, expected);
  }
  // Rows that both have with other optimizers don't fit.
  TableLayout other = config_.tables[0];
  other.first_order->optimizer.kind = OptimizerKind::kSgd;
  EXPECT_NE(DescribeInitDifference(config_.tables[0], other), "");
  other.first_order->optimizer = config_.tables[0].first_order->optimizer;
  other.first_order->optimizer.clip_value = 3;
  other.first_order->init_scale = 3;
  EXPECT_EQ(DescribeInitDifference(config_.tables[0], other), "");
}

TEST_F(InitCheckpointTest, TablesThatBeginAnewStayEmpty) {
  const auto init = ReadInitManifest(&disk_, config_);
  ASSERT_TRUE(init.ok()) << init.status();
  const auto load = [&] {
    TableSet tables(config_.tables, config_.seed);
    const absl::Status loaded =
        LoadInitRows(&disk_, config_, *init, 1, &tables, [](uint64_t) { return absl::OkStatus(); });
    EXPECT_TRUE(loaded.ok()) << loaded;
    RowsByName found;
    AddRows(tables, kNoStep, &found);
    return found;
  };
  const std::string anew = config_.tables[0].name;
  RowsByName expected = load();
  const size_t all = expected.size();
  for (auto row = expected.begin(); row != expected.end();) {
    row = row->first.first == anew ? expected.erase(row) : std::next(row);
  }
  ASSERT_LT(expected.size(), all);
  config_.init_begins_anew = {anew};
  EXPECT_EQ(load(), expected);
}

TEST_F(InitCheckpointTest, WhatDoesNotFitIsNamed) {
  config_.tables[0].optimizer.learning_rate_scale = 7;
  config_.tables[0].init_scale = 0.7f;
  EXPECT_TRUE(ReadInitManifest(&disk_, config_).ok());
  config_.tables[0].dim += 1;
  absl::Status status = ReadInitManifest(&disk_, config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(config_.tables[0].name + "': dim is "));
  config_.tables[0].dim -= 1;
  config_.tables[0].optimizer.kind = OptimizerKind::kAdam;
  EXPECT_EQ(ReadInitManifest(&disk_, config_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  config_.init_generation = 9;
  status = ReadInitManifest(&disk_, config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("init_from"));
}

}  // namespace
}  // namespace thermocline
