#include "server/core/step_applier.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing/core_fixtures.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakeChunk;
using testing_core::MakeTable;

AssembledPush Assembled(uint32_t rank, int64_t step, std::vector<wire::PushChunk> chunks) {
  AssembledPush push;
  push.rank = WorkerRank(rank);
  push.step = Step(step);
  push.learning_rate = chunks.at(0).learning_rate;
  push.chunks = std::move(chunks);
  return push;
}

std::vector<float> WeightsOf(const TableSet& tables, size_t position, Key key) {
  const EmbeddingTable& table = tables.at(position).table;
  std::vector<float> weights(table.layout().dim);
  EXPECT_TRUE(table.GatherWeights({key}, reinterpret_cast<uint8_t*>(weights.data())).ok());
  return weights;
}

TEST(StepApplierTest, OneUpdateAKeyWithTheSumOfAllWorkers) {
  TableSet tables({MakeTable(4, 1, OptimizerKind::kAdagrad)}, 0);
  StepApplier applier(&tables, 1);
  wire::PushChunk a = MakeChunk(0, 0);
  AddRange(&a, 4, {1, 2}, {3, 1});
  wire::PushChunk b = MakeChunk(1, 0);
  AddRange(&b, 4, {1}, {1});
  std::vector<AssembledPush> pushes;
  pushes.push_back(Assembled(0, 0, {a}));
  pushes.push_back(Assembled(1, 0, {b}));
  ASSERT_TRUE(applier.Apply(pushes).ok());
  // Adagrad's first update is -rate * g / |g|: two updates of one key would give another value.
  EXPECT_FLOAT_EQ(WeightsOf(tables, 0, 1)[0], -1.0f);
  std::map<Key, std::pair<float, uint32_t>> rows;  // Accumulator and count.
  EXPECT_TRUE(tables.at(0)
                  .table
                  .VisitRows([&](Key key, absl::Span<const float> row, uint32_t count, Step) {
                    rows[key] = {row[1], count};
                  })
                  .ok());
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1], std::make_pair(16.0f, 2u));
  EXPECT_EQ(rows[2], std::make_pair(1.0f, 1u));
  EXPECT_EQ(tables.at(0).keys_pushed.load(), 3u);
}

TEST(StepApplierTest, WrittenBackRowsComeAfterGradientsAndTheHighestRankWins) {
  TableSet tables({MakeTable(0, 2)}, 0);
  StepApplier applier(&tables, 2);
  wire::PushChunk a = MakeChunk(0, 0);
  AddRange(&a, 0, {1}, {5, 5}, wire::PushKind::kAssign);
  AddRange(&a, 0, {2}, {6, 6}, wire::PushKind::kAssign);
  wire::PushChunk b = MakeChunk(1, 0);
  AddRange(&b, 0, {1}, {7, 8}, wire::PushKind::kAssign);
  AddRange(&b, 0, {2}, {100, 100});
  std::vector<AssembledPush> pushes;
  pushes.push_back(Assembled(0, 0, {a}));
  pushes.push_back(Assembled(1, 0, {b}));
  ASSERT_TRUE(applier.Apply(pushes).ok());
  EXPECT_EQ(WeightsOf(tables, 0, 1), (std::vector<float>{7, 8}));
  EXPECT_EQ(WeightsOf(tables, 0, 2), (std::vector<float>{6, 6}));
}

// No gradient is not a gradient of zero, by which Adam would move the row.
TEST(StepApplierTest, KeysWithoutAGradientAreCountedAndNotUpdated) {
  TableSet tables({MakeTable(0, 1, OptimizerKind::kAdam)}, 0);
  StepApplier applier(&tables, 1);
  const auto apply = [&](int64_t step, const std::vector<Key>& keys,
                         const std::vector<float>& gradients, const std::vector<Key>& counted) {
    wire::PushChunk chunk = MakeChunk(0, step);
    AddRange(&chunk, 0, keys, gradients);
    AddRange(&chunk, 0, counted, {}, wire::PushKind::kCount);
    std::vector<AssembledPush> pushes;
    pushes.push_back(Assembled(0, step, {chunk}));
    ASSERT_TRUE(applier.Apply(pushes).ok());
  };
  struct Row {
    std::vector<float> floats;
    uint32_t count;
    Step changed;
  };
  const auto rows = [&] {
    std::map<Key, Row> all;
    EXPECT_TRUE(
        tables.at(0)
            .table
            .VisitRows([&](Key key, absl::Span<const float> row, uint32_t count, Step changed) {
              all[key] = {{row.begin(), row.end()}, count, changed};
            })
            .ok());
    return all;
  };
  apply(0, {1, 2}, {3, 3}, {});
  const std::map<Key, Row> before = rows();
  apply(1, {2}, {0}, {1, 7});
  const std::map<Key, Row> after = rows();
  ASSERT_EQ(after.size(), 3u);
  EXPECT_EQ(after.at(1).floats, before.at(1).floats);
  EXPECT_EQ(after.at(1).count, 2u);
  EXPECT_EQ(after.at(1).changed, Step(1));
  EXPECT_NE(after.at(2).floats, before.at(2).floats);
  // The row of a new key is as it was born.
  EXPECT_EQ(after.at(7).floats, (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(after.at(7).count, 1u);
  EXPECT_EQ(after.at(7).changed, Step(1));
  EXPECT_EQ(tables.at(0).keys_pushed.load(), 5u);
}

TEST(StepApplierTest, LookupsWithoutAGradientHelpToAdmitAKey) {
  TableLayout layout = MakeTable(0, 1);
  layout.min_count = 3;
  TableSet tables({layout}, 0);
  StepApplier applier(&tables, 1);
  wire::PushChunk a = MakeChunk(0, 0);
  AddRange(&a, 0, {1, 2}, {1, 1});
  wire::PushChunk b = MakeChunk(1, 0);
  AddRange(&b, 0, {1, 4}, {}, wire::PushKind::kCount);
  wire::PushChunk c = MakeChunk(2, 0);
  AddRange(&c, 0, {1, 4}, {}, wire::PushKind::kCount);
  std::vector<AssembledPush> pushes;
  pushes.push_back(Assembled(0, 0, {a}));
  pushes.push_back(Assembled(1, 0, {b}));
  pushes.push_back(Assembled(2, 0, {c}));
  ASSERT_TRUE(applier.Apply(pushes).ok());
  const EmbeddingTable& table = tables.at(0).table;
  EXPECT_EQ(table.num_rows(), 1u);
  EXPECT_EQ(table.num_candidates(), 2u);
  EXPECT_EQ(table.gradients_dropped(), 1u);
  // All three lookups count before the one gradient does.
  EXPECT_EQ(WeightsOf(tables, 0, 1)[0], -1.0f);
}

TEST(StepApplierTest, RowsRememberTheStepOfTheirChange) {
  TableSet tables({MakeTable(0, 1)}, 0);
  StepApplier applier(&tables, 1);
  for (const int64_t step : {3, 4}) {
    wire::PushChunk chunk = MakeChunk(0, step);
    AddRange(&chunk, 0, {static_cast<Key>(step)}, {1});
    AddRange(&chunk, 0, {static_cast<Key>(10 + step)}, {1}, wire::PushKind::kAssign);
    chunk.learning_rate = 0.5f;
    std::vector<AssembledPush> pushes;
    pushes.push_back(Assembled(0, step, {chunk}));
    ASSERT_TRUE(applier.Apply(pushes).ok());
  }
  EXPECT_EQ(WeightsOf(tables, 0, 3)[0], -0.5f);
  EXPECT_TRUE(tables.at(0)
                  .table
                  .VisitRows([](Key key, absl::Span<const float>, uint32_t, Step changed) {
                    EXPECT_EQ(changed, Step(static_cast<int64_t>(key % 10)));
                  })
                  .ok());
}

// The content of one worker's push, cut into chunks at random.
std::vector<wire::PushChunk> CutAtRandom(const wire::PushChunk& whole, std::mt19937_64* random) {
  std::vector<wire::PushChunk> chunks(1 + (*random)() % 6);
  for (wire::PushChunk& chunk : chunks) chunk.learning_rate = whole.learning_rate;
  for (const wire::PushRange& range : whole.tables) {
    const size_t width = range.value_floats / range.count;
    for (size_t i = 0; i < range.count; ++i) {
      wire::PushChunk& chunk = chunks[(*random)() % chunks.size()];
      const auto values = whole.ValuesOf(range).subspan(i * width, width);
      AddRange(&chunk, range.table.value(), {whole.KeysOf(range)[i]},
               std::vector<float>(values.begin(), values.end()), range.kind);
    }
  }
  return chunks;
}

TEST(StepApplierTest, BitsDependNeitherOnThreadsNorOnChunks) {
  const uint64_t seed = TestSeed();
  std::vector<TableLayout> layouts = {MakeTable(0, 3, OptimizerKind::kAdam),
                                      MakeTable(1, 8, OptimizerKind::kAdagrad),
                                      MakeTable(2, 1, OptimizerKind::kRowWiseAdagrad)};
  layouts[2].min_count = 4;
  const auto digest_after = [&](int num_threads, uint64_t cut_seed) {
    TableSet tables(layouts, 9);
    StepApplier applier(&tables, num_threads);
    std::mt19937_64 content(seed);
    std::mt19937_64 cut(cut_seed);
    for (int64_t step = 0; step < 8; ++step) {
      std::vector<AssembledPush> pushes;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        wire::PushChunk whole = MakeChunk(rank, step);
        whole.learning_rate = 0.1f;
        for (const TableLayout& layout : layouts) {
          std::vector<Key> keys[2], counted;
          std::vector<float> values[2];
          for (Key key = 0; key < 50; ++key) {
            if (content() % 3 != 0) continue;
            const bool assign = content() % 10 == 0;
            if (content() % 5 == 0) {
              counted.push_back(key);
              continue;
            }
            keys[assign].push_back(key);
            for (int i = 0; i < (assign ? layout.row_floats() : layout.dim); ++i) {
              values[assign].push_back(static_cast<float>(content() % 1000) / 999.0f);
            }
          }
          if (!keys[0].empty()) AddRange(&whole, layout.id.value(), keys[0], values[0]);
          if (!counted.empty()) {
            AddRange(&whole, layout.id.value(), counted, {}, wire::PushKind::kCount);
          }
          if (keys[1].empty()) continue;
          AddRange(&whole, layout.id.value(), keys[1], values[1], wire::PushKind::kAssign);
        }
        pushes.push_back(Assembled(rank, step, CutAtRandom(whole, &cut)));
      }
      EXPECT_TRUE(applier.Apply(pushes).ok());
    }
    return *tables.ComputeDigest();
  };
  const Digest expected = digest_after(1, 1);
  for (const int num_threads : {1, 2, 4}) {
    for (uint64_t cut_seed = 2; cut_seed < 5; ++cut_seed) {
      EXPECT_TRUE(digest_after(num_threads, cut_seed) == expected);
    }
  }
}

TEST(StepApplierTest, TheGradientsOfALargeTableAreMergedByAllThreads) {
  std::mt19937_64 random(TestSeed());
  std::vector<AssembledPush> pushes;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    wire::PushChunk chunk = MakeChunk(rank, 0);
    chunk.learning_rate = 0.1f;
    for (const uint32_t table : {0, 1}) {
      std::vector<Key> keys;
      std::vector<float> gradients;
      for (Key key = 0; key < (table == 0 ? 40000 : 100); ++key) {
        if (random() % 2 == 0) continue;
        keys.push_back(key);
        for (int i = 0; i < 2; ++i) {
          gradients.push_back(static_cast<float>(random() % 1000) / 999.0f);
        }
      }
      AddRange(&chunk, table, keys, gradients);
    }
    pushes.push_back(Assembled(rank, 0, {chunk}));
  }
  std::vector<Digest> digests;
  for (const int num_threads : {1, 2, 3, 16}) {
    TableSet tables({MakeTable(0, 2, OptimizerKind::kAdam), MakeTable(1, 2)}, 9);
    StepApplier applier(&tables, num_threads);
    ASSERT_TRUE(applier.Apply(pushes).ok());
    // About 60,000 gradients are cut into no more pieces than pay.
    EXPECT_EQ(applier.merge_timer().count(), static_cast<uint64_t>(std::min(num_threads, 7) + 1));
    digests.push_back(*tables.ComputeDigest());
    EXPECT_TRUE(digests.back() == digests.front()) << num_threads;
  }
}

}  // namespace
}  // namespace thermocline
