#include "worker/dense/dense_blocks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

DenseTable Tensor(uint32_t id, int rows, int cols) {
  DenseTable tensor;
  tensor.layout.id = TableId(id);
  tensor.layout.name = "tensor" + std::to_string(id);
  tensor.layout.dim = kDenseBlockFloats;
  tensor.layout.optimizer.kind = OptimizerKind::kAdam;  // Two floats of state a weight.
  tensor.layout.init_scale = 0.1f * id;
  tensor.layout.role = TableRole::kDense;
  tensor.rows = rows;
  tensor.cols = cols;
  return tensor;
}

std::vector<DenseTable> Tensors() {
  return {Tensor(3, 13, 512), Tensor(4, 1, 512), Tensor(5, 100, 77), Tensor(6, 1, 1)};
}

TEST(DenseBlocksTest, EveryBlockIsOnTheServerThatOwnsItsPartitionOnce) {
  for (uint32_t servers : {1u, 2u, 5u}) {
    const ClusterMap cluster(servers);
    const DenseBlocks blocks(Tensors(), cluster);
    EXPECT_EQ(blocks.num_blocks(), 26 + 2 + 31 + 1);
    std::vector<float> staging(blocks.arena_floats());
    const auto slices = blocks.PullSlices(absl::MakeSpan(staging));
    ASSERT_EQ(slices.size(), servers);
    std::set<std::pair<uint32_t, Key>> seen;
    const float* next = staging.data();
    for (uint32_t server = 0; server < servers; ++server) {
      for (const PullSlice& slice : slices[server]) {
        EXPECT_EQ(slice.rows.size(), slice.keys.size() * kDenseBlockFloats);
        EXPECT_EQ(slice.rows.data(), next);
        next += slice.rows.size();
        for (Key key : slice.keys) {
          EXPECT_EQ(cluster.ServerOfHash(KeyHash(TableSalt(slice.table), key)),
                    ServerIndex(server));
          EXPECT_TRUE(seen.emplace(slice.table.value(), key).second);
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), blocks.num_blocks());
  }
}

TEST(DenseBlocksTest, StagingAndBackKeepsEveryFloatInItsPlace) {
  const DenseBlocks blocks(Tensors(), ClusterMap(3));
  std::vector<float> arena(blocks.arena_floats()), staged(arena.size()), back(arena.size(), -1);
  std::iota(arena.begin(), arena.end(), 0.0f);
  blocks.StageGradients(arena, absl::MakeSpan(staged));
  EXPECT_NE(arena, staged);
  blocks.UnstageWeights(staged, absl::MakeSpan(back));
  EXPECT_EQ(arena, back);
}

TEST(DenseBlocksTest, WholeRowsKeepWeightsAndStateInTheirPlace) {
  const DenseBlocks blocks(Tensors(), ClusterMap(3));
  ASSERT_GT(blocks.state_floats(), 0);
  std::vector<float> weights(blocks.arena_floats());
  std::vector<float> state(blocks.num_blocks() * blocks.state_floats());
  std::iota(weights.begin(), weights.end(), 0.0f);
  std::iota(state.begin(), state.end(), -1e6f);
  std::vector<float> rows(blocks.num_blocks() * blocks.row_floats());
  blocks.StageRows(weights, state, absl::MakeSpan(rows));

  // What is pulled lies where what is pushed lay.
  std::vector<float> pulled(rows.size());
  const auto assigned = blocks.AssignSlices(rows);
  const auto asked = blocks.PullRowSlices(absl::MakeSpan(pulled));
  for (size_t server = 0; server < asked.size(); ++server) {
    ASSERT_EQ(asked[server].size(), assigned[server].size());
    for (size_t i = 0; i < asked[server].size(); ++i) {
      EXPECT_EQ(asked[server][i].table, assigned[server][i].table);
      EXPECT_EQ(asked[server][i].keys, assigned[server][i].keys);
      ASSERT_EQ(asked[server][i].rows.size(), assigned[server][i].values.size());
      std::copy(assigned[server][i].values.begin(), assigned[server][i].values.end(),
                asked[server][i].rows.begin());
    }
  }
  std::vector<float> weights_back(weights.size(), -1), state_back(state.size(), -1);
  blocks.UnstageRows(pulled, absl::MakeSpan(weights_back), absl::MakeSpan(state_back));
  EXPECT_EQ(weights_back, weights);
  EXPECT_EQ(state_back, state);
}

TEST(DenseBlocksTest, InitialParametersAreTheInitialRowsOfTheTables) {
  const std::vector<DenseTable> tensors = Tensors();
  const DenseBlocks blocks(tensors, ClusterMap(2));
  std::vector<float> weights(blocks.arena_floats());
  std::vector<float> state(blocks.num_blocks() * blocks.state_floats());
  blocks.Initialize(17, absl::MakeSpan(weights), absl::MakeSpan(state));
  std::vector<float> rows(blocks.num_blocks() * blocks.row_floats());
  blocks.StageRows(weights, state, absl::MakeSpan(rows));
  for (const auto& server : blocks.AssignSlices(rows)) {
    for (const wire::PushSlice& slice : server) {
      const TableLayout& layout = tensors[slice.table.value() - 3].layout;
      std::vector<float> expected(layout.row_floats());
      for (size_t i = 0; i < slice.keys.size(); ++i) {
        InitialRow(layout, 17, slice.keys[i], absl::MakeSpan(expected));
        EXPECT_EQ(slice.values.subspan(i * expected.size(), expected.size()),
                  absl::MakeConstSpan(expected));
      }
    }
  }
}

}  // namespace
}  // namespace thermocline
