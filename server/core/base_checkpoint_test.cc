// A checkpoint's rows are loaded by any number of threads, and all of them or none.
#include "server/core/base_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "server/core/checkpointed_server.h"
#include "server/core/testing.h"
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

// No partition of such a file is looked for: nothing would be loaded, and nobody told.
TEST_F(BaseCheckpointTest, FilesWithTheRowsOfAnotherServerAreRefused) {
  manifest_.mutable_shards(0)->mutable_files()->Swap(manifest_.mutable_shards(1)->mutable_files());
  for (const int num_threads : {1, 4}) {
    TableSet tables(config_.tables, config_.seed);
    const absl::Status status = Load(0, kServers, num_threads, &tables);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("server 0"));
  }
}

}  // namespace
}  // namespace thermocline
