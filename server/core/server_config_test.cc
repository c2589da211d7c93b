#include "server/core/server_config.h"

#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing/core_fixtures.h"

namespace thermocline {
namespace {

using testing_core::MakeConfig;

TEST(ServerConfigTest, RefusesBadValuesByName) {
  const struct {
    std::function<void(ServerConfig*)> change;
    std::string message;
  } cases[] = {
      {[](ServerConfig* c) { c->job_id = ""; }, "job_id"},
      {[](ServerConfig* c) { c->job_id = std::string(257, 'j'); }, "257 bytes"},
      {[](ServerConfig* c) { c->job_id = "a\nb"; }, "job_id 'a\\nb'"},
      {[](ServerConfig* c) { c->num_servers = 0; }, "num_servers 0"},
      {[](ServerConfig* c) { c->num_servers = kNumPartitions + 1; }, "num_servers 65537"},
      {[](ServerConfig* c) { c->server_index = ServerIndex(1); }, "server_index 1 of 1"},
      {[](ServerConfig* c) { c->num_workers = 0; }, "num_workers 0"},
      {[](ServerConfig* c) { c->num_workers = kMaxWorkers + 1; }, "num_workers 4097"},
      {[](ServerConfig* c) { c->checkpoint_full_every = 0; }, "checkpoint_full_every is 0"},
      {[](ServerConfig* c) { c->base_checkpoint = "step-000000009"; }, "without a directory"},
      {[](ServerConfig* c) { c->tables.clear(); }, "no tables"},
      {[](ServerConfig* c) { c->tables[1].id = TableId(0); }, "id 0"},
      {[](ServerConfig* c) { c->tables[1].name = "T0"; }, "name 'T0'"},
      {[](ServerConfig* c) { c->tables[0].dim = 0; }, "table 'T0': dim 0"},
      {[](ServerConfig* c) { c->tables[0].dim = kMaxDim + 1; }, "table 'T0': dim 4097"},
  };
  EXPECT_TRUE(ValidateServerConfig(MakeConfig(1)).ok());
  for (const auto& test : cases) {
    ServerConfig config = MakeConfig(1);
    test.change(&config);
    const absl::Status status = ValidateServerConfig(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(test.message), std::string::npos) << status;
  }
}

TEST(ServerConfigTest, NamesTheDifference) {
  const ServerConfig here = MakeConfig(1);
  EXPECT_EQ(DescribeDifference(here, here), "");
  ServerConfig there = here;
  there.generation = 6;
  EXPECT_EQ(DescribeDifference(here, there), "generation is 5 here, 6 there");
  there = here;
  there.staleness_steps = 2;
  EXPECT_EQ(DescribeDifference(here, there), "staleness_steps is 0 here, 2 there");
  there = here;
  there.checkpoint_every_steps = 10;
  EXPECT_EQ(DescribeDifference(here, there), "checkpoint_every_steps is 0 here, 10 there");
  there = here;
  there.checkpoint_directory = "/there";
  EXPECT_EQ(DescribeDifference(here, there), "checkpoint_directory is  here, /there there");
  EXPECT_EQ(DescribeDifference(there, here), "");  // It leaves the directory to the server.
  there = here;
  there.base_checkpoint = "step-000000009";
  EXPECT_EQ(DescribeDifference(here, there), "");
  there = here;
  there.tables[1].dim = 8;
  const std::string difference = DescribeDifference(here, there);
  EXPECT_NE(difference.find("'T1'"), std::string::npos) << difference;
  EXPECT_NE(difference.find("dim"), std::string::npos) << difference;
}

}  // namespace
}  // namespace thermocline
