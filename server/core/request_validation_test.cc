#include "server/core/request_validation.h"

#include <limits>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/math/sparse_optimizer.h"
#include "gtest/gtest.h"
#include "server/core/testing/core_fixtures.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakeChunk;
using testing_core::MakeConfig;
using testing_core::MakePull;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& chunk) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find(chunk), std::string::npos) << status;
}

class RequestValidationTest : public ::testing::Test {
 protected:
  const ServerConfig config_ = MakeConfig(/*num_workers=*/2, /*staleness_steps=*/1);
  const RequestValidation validation_{config_};
};

TEST_F(RequestValidationTest, AcceptsWhatIsRight) {
  EXPECT_TRUE(validation_.CheckPull(MakePull(1, 3)).ok());
  wire::PushChunk chunk = MakeChunk(1, 2);
  AddRange(&chunk, 0, {1, 2}, {1, 2, 3, 4});
  AddRange(&chunk, 1, {9}, {0.5f, 0.25f}, wire::PushKind::kAssign);  // Weight and accumulator.
  AddRange(&chunk, 1, {3, 4}, {}, wire::PushKind::kCount);
  EXPECT_TRUE(validation_.CheckPush(chunk).ok());
  EXPECT_TRUE(validation_.CheckPush(MakeChunk(0, 0)).ok());
}

TEST_F(RequestValidationTest, AnotherJobOrGeneration) {
  wire::PullRequest pull = MakePull(0, 0);
  pull.header.job_id = "stranger";
  ExpectError(validation_.CheckPull(pull), absl::StatusCode::kFailedPrecondition,
              "serves job 'job', the request is of job 'stranger'");
  wire::PushChunk chunk = MakeChunk(0, 0);
  chunk.header.generation = 4;
  ExpectError(validation_.CheckPush(chunk), absl::StatusCode::kFailedPrecondition,
              "is in generation 5, the request is of generation 4");
}

TEST_F(RequestValidationTest, PullsOutOfRange) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(validation_.CheckPull(MakePull(2, 0)), kInvalid, "rank 2");
  ExpectError(validation_.CheckPull(MakePull(0, -1)), kInvalid, "negative step");
  ExpectError(validation_.CheckPull(MakePull(0, 0, /*table=*/7)), absl::StatusCode::kNotFound,
              "no table with id 7");
  wire::PullRequest pull = MakePull(0, 5);
  pull.staleness_steps = 2;
  ExpectError(validation_.CheckPull(pull), kInvalid, "staleness_steps 2 is more than the job's 1");
  pull = MakePull(0, 5);
  pull.after_step = Step(5);
  ExpectError(validation_.CheckPull(pull), kInvalid, "after_step 5");
  pull = MakePull(0, 5);
  pull.tables[0].count = 2;
  ExpectError(validation_.CheckPull(pull), kInvalid, "table 'T0', 2 keys");
  pull.tables[0] = {TableId(0), SIZE_MAX, 2};
  ExpectError(validation_.CheckPull(pull), kInvalid, "table 'T0', 2 keys");
}

TEST_F(RequestValidationTest, AReadMayComeFromAnyRank) {
  wire::PullRequest pull = MakePull(99, 5);
  pull.kind = wire::PullKind::kRead;
  pull.staleness_steps = 9;
  EXPECT_TRUE(validation_.CheckPull(pull).ok());
  // But what was acknowledged was so to a worker.
  pull.header.acked_through = Step(4);
  ExpectError(validation_.CheckPull(pull), absl::StatusCode::kInvalidArgument,
              "acked_through 4 of no worker");
}

TEST_F(RequestValidationTest, PushesOutOfRange) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(validation_.CheckPush(MakeChunk(2, 0)), kInvalid, "the job has 2 workers");
  ExpectError(validation_.CheckPush(MakeChunk(0, -1)), kInvalid, "negative step");
  wire::PushChunk chunk = MakeChunk(0, 0);
  chunk = MakeChunk(0, 0xfffffffe);
  EXPECT_TRUE(validation_.CheckPush(chunk).ok());
  chunk.step = chunk.step + 1;
  ExpectError(validation_.CheckPush(chunk), kInvalid, "steps end at 4294967294");
  chunk = MakeChunk(0, 0);
  chunk.learning_rate = std::numeric_limits<float>::quiet_NaN();
  ExpectError(validation_.CheckPush(chunk), kInvalid, "learning rate nan");
}

TEST(RequestValidationLimitTest, RankZeroBringsEveryRowLimitWhereItIsDue) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ServerConfig config = MakeConfig(/*num_workers=*/2);
  config.tables[1].max_rows = 10;  // Counted after steps 3, 7, ...
  const RequestValidation validation(config);
  wire::PushChunk chunk = MakeChunk(0, 4);
  ExpectError(validation.CheckPush(chunk), kInvalid, "table 'T1' lacks the row limit");
  chunk.row_limits = {{TableId(1), 5}};
  EXPECT_TRUE(validation.CheckPush(chunk).ok());
  chunk.row_limits[0].oldest_kept = 6;
  ExpectError(validation.CheckPush(chunk), kInvalid, "the row limit 6 is of a later step");
  chunk.row_limits = {{TableId(0), 5}};
  ExpectError(validation.CheckPush(chunk), kInvalid, "table 'T1' lacks the row limit");
  chunk.row_limits = {{TableId(0), 5}, {TableId(1), 5}};
  ExpectError(validation.CheckPush(chunk), kInvalid, "2 row limits, where 1 are due");
  // Elsewhere there is none: of other ranks, of other steps, in chunks before the last.
  EXPECT_TRUE(validation.CheckPush(MakeChunk(1, 4)).ok());
  EXPECT_TRUE(validation.CheckPush(MakeChunk(0, 5)).ok());
  EXPECT_TRUE(validation.CheckPush(MakeChunk(0, 4, 0, 2)).ok());
  for (wire::PushChunk other : {MakeChunk(1, 4), MakeChunk(0, 5), MakeChunk(0, 4, 0, 2)}) {
    other.row_limits = {{TableId(1), 5}};
    ExpectError(validation.CheckPush(other), kInvalid, "1 row limits, where 0 are due");
  }
}

TEST_F(RequestValidationTest, OnlyRankZeroCountsRows) {
  wire::PullRequest count;
  count.header = testing_core::MakeHeader(0);
  count.step = Step(4);
  count.count_rows = true;
  EXPECT_TRUE(validation_.CheckPull(count).ok());
  wire::PullRequest with_keys = MakePull(0, 4);
  with_keys.count_rows = true;
  wire::PullRequest of_another = count, stale = count, read = count;
  of_another.header.rank = WorkerRank(1);
  stale.staleness_steps = 1;
  read.kind = wire::PullKind::kRead;
  for (const wire::PullRequest& wrong : {with_keys, of_another, stale, read}) {
    ExpectError(validation_.CheckPull(wrong), absl::StatusCode::kInvalidArgument, "counts rows");
  }
}

TEST_F(RequestValidationTest, PushesOfTheWrongSize) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  wire::PushChunk chunk = MakeChunk(0, 0);
  AddRange(&chunk, 9, {1}, {1});
  ExpectError(validation_.CheckPush(chunk), absl::StatusCode::kNotFound, "no table with id 9");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1, 2}, {1, 2, 3});
  ExpectError(validation_.CheckPush(chunk), kInvalid,
              "table 'T0', 2 keys: 3 values where a gradient has 2");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 1, {1}, {1}, wire::PushKind::kAssign);
  ExpectError(validation_.CheckPush(chunk), kInvalid, "1 values where a row has 2");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1}, {1, 2}, wire::PushKind::kCount);
  ExpectError(validation_.CheckPush(chunk), kInvalid,
              "table 'T0', 1 keys: 2 values where a key without a gradient has 0");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1}, {1, 2}, static_cast<wire::PushKind>(wire::kNumPushKinds));
  ExpectError(validation_.CheckPush(chunk), kInvalid, "unknown kind 3");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1}, {1, 2});
  chunk.counts.clear();
  ExpectError(validation_.CheckPush(chunk), kInvalid, "1 keys with 0 counts");
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1}, {1, 2});
  chunk.tables[0].begin = SIZE_MAX;
  ExpectError(validation_.CheckPush(chunk), kInvalid, "the chunk has only 1 keys and 2 values");
  chunk.tables[0].begin = 0;
  chunk.tables[0].value_begin = 1;
  ExpectError(validation_.CheckPush(chunk), kInvalid, "the chunk has only 1 keys and 2 values");
  // A product that wraps around.
  chunk = MakeChunk(0, 0);
  AddRange(&chunk, 0, {1}, {1, 2});
  chunk.tables[0].count = (size_t{1} << 63) + 1;
  ExpectError(validation_.CheckPush(chunk), kInvalid, "the chunk has only");
}

TEST_F(RequestValidationTest, ValuesThatAreNotFinite) {
  wire::PushChunk chunk = MakeChunk(1, 3);
  AddRange(&chunk, 0, {10, 20}, {1, 2, 3, kInfinity});
  ExpectError(validation_.CheckPush(chunk), absl::StatusCode::kInvalidArgument,
              "server 0, rank 1, step 3: push: table 'T0', 2 keys: gradient of key 20 holds inf");
  chunk = MakeChunk(1, 3);
  AddRange(&chunk, 1, {30}, {1, std::numeric_limits<float>::quiet_NaN()}, wire::PushKind::kAssign);
  ExpectError(validation_.CheckPush(chunk), absl::StatusCode::kInvalidArgument,
              "row of key 30 holds nan");
  chunk = MakeChunk(1, 3);
  AddRange(&chunk, 1, {30, 40}, {1, 2, -kInfinity, 2}, wire::PushKind::kAssign);
  ExpectError(validation_.CheckPush(chunk), absl::StatusCode::kInvalidArgument,
              "row of key 40 holds -inf");
}

// What a row becomes on a server, by gradients that are finite, may come from where it was held.
TEST_F(RequestValidationTest, AnAccumulatorMayOverflowOnEitherSide) {
  const TableLayout& table = config_.tables[1];
  ASSERT_EQ(table.optimizer.kind, OptimizerKind::kAdagrad);
  std::vector<float> row = {1, 0};
  const std::vector<float> gradient = {std::numeric_limits<float>::max()};
  wire::PushChunk chunk = MakeChunk(1, 3);
  AddRange(&chunk, 1, {30}, gradient);
  EXPECT_TRUE(validation_.CheckPush(chunk).ok());
  UpdateRow(ScalarsForStep(table.optimizer, 0.1f, Step(3)), gradient.data(), /*lookups=*/1, &row[0],
            &row[1], table.dim);
  ASSERT_EQ(row[1], kInfinity);
  chunk = MakeChunk(1, 3);
  AddRange(&chunk, 1, {30}, row, wire::PushKind::kAssign);
  EXPECT_TRUE(validation_.CheckPush(chunk).ok()) << validation_.CheckPush(chunk);
}

// For every server count, each key is taken by exactly the server that the cluster map names.
TEST(RequestValidationShardTest, KeysOfOtherShards) {
  for (const uint32_t num_servers : {1u, 2u, 3u, 7u}) {
    const ClusterMap cluster(num_servers);
    for (uint32_t server = 0; server < num_servers; ++server) {
      ServerConfig config = MakeConfig(1);
      config.num_servers = num_servers;
      config.server_index = ServerIndex(server);
      const RequestValidation validation(config);
      for (Key key = 0; key < 300; ++key) {
        const uint64_t hash = KeyHash(TableSalt(TableId(1)), key);
        const bool ours = cluster.ServerOfHash(hash) == config.server_index;
        const absl::Status pull = validation.CheckPull(MakePull(0, 0, 1, {key}));
        wire::PushChunk chunk = MakeChunk(0, 0);
        AddRange(&chunk, 1, {key}, {1});
        const absl::Status push = validation.CheckPush(chunk);
        ASSERT_EQ(pull.ok(), ours) << pull;
        ASSERT_EQ(push.ok(), ours) << push;
        if (ours) continue;
        EXPECT_EQ(pull.code(), absl::StatusCode::kInvalidArgument);
        ExpectError(push, absl::StatusCode::kInvalidArgument,
                    "key " + std::to_string(key) + " is not of this shard");
      }
    }
  }
}

}  // namespace
}  // namespace thermocline
