#include "server/tables/embedding_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/math/table_memory.h"
#include "common/math/testing/random_optimizers.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

constexpr uint64_t kJobSeed = 42;

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

TableLayout MakeLayout(OptimizerKind kind, int dim, uint32_t id = 7) {
  TableLayout layout;
  layout.id = TableId(id);
  layout.name = "C" + std::to_string(id);
  layout.dim = dim;
  layout.optimizer.kind = kind;
  layout.optimizer.initial_accumulator = kind == OptimizerKind::kSgd ? 0.0f : 0.125f;
  layout.init_scale = 0.5f;
  return layout;
}

std::vector<float> RandomFloats(size_t n, std::mt19937_64& random) {
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> floats(n);
  for (float& f : floats) f = value(random);
  return floats;
}

// The table as anybody would write it: the specification.
class ModelTable {
 public:
  struct Row {
    std::vector<float> floats;  // weights, then optimizer state
    uint32_t count = 0;
  };

  explicit ModelTable(const TableLayout& layout) : layout_(layout) {}

  std::vector<float> Read(Key key) const {
    const auto found = rows_.find(key);
    return found != rows_.end() ? found->second.floats : Initial(key);
  }
  void Apply(Key key, uint32_t count, const float* gradient, const RowScalars& scalars) {
    Row& row = rows_[key];
    if (row.floats.empty()) row.floats = Initial(key);
    UpdateRow(scalars, gradient, count, row.floats.data(), row.floats.data() + layout_.dim,
              layout_.dim);
    row.count += count;
  }
  void Count(Key key, uint32_t count) {
    Row& row = rows_[key];
    if (row.floats.empty()) row.floats = Initial(key);
    row.count += count;
  }
  void Assign(Key key, uint32_t count, const float* floats) {
    Row& row = rows_[key];
    row.floats.assign(floats, floats + layout_.row_floats());
    row.count += count;
  }
  const std::unordered_map<Key, Row>& rows() const { return rows_; }

 private:
  std::vector<float> Initial(Key key) const {
    std::vector<float> row(layout_.row_floats());
    InitialRow(layout_, kJobSeed, key, absl::MakeSpan(row));
    return row;
  }

  const TableLayout layout_;
  std::unordered_map<Key, Row> rows_;
};

// Bit by bit, into memory that is not aligned.
void ExpectSameWeights(const EmbeddingTable& table, const ModelTable& model,
                       const std::vector<Key>& keys) {
  const size_t row_bytes = table.layout().dim * sizeof(float);
  std::vector<uint8_t> got(keys.size() * row_bytes + 1, 0xAB);
  EXPECT_TRUE(table.GatherWeights(keys, got.data() + 1).ok());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(std::memcmp(got.data() + 1 + i * row_bytes, model.Read(keys[i]).data(), row_bytes), 0)
        << "key " << keys[i] << " at " << i;
  }
}

void ExpectSameRows(const EmbeddingTable& table, const ModelTable& model) {
  ASSERT_EQ(table.num_rows(), model.rows().size());
  Digest digest;
  size_t visited = 0;
  EXPECT_TRUE(
      table
          .VisitRows([&](Key key, absl::Span<const float> row, uint32_t count, Step) {
            ++visited;
            const auto found = model.rows().find(key);
            ASSERT_NE(found, model.rows().end()) << "key " << key;
            ASSERT_EQ(row.size(), found->second.floats.size());
            EXPECT_EQ(
                std::memcmp(row.data(), found->second.floats.data(), row.size() * sizeof(float)), 0)
                << "key " << key;
            EXPECT_EQ(count, found->second.count) << "key " << key;
            digest.Add(RowDigest(table.layout().id, key, found->second.floats));
          })
          .ok());
  EXPECT_EQ(visited, model.rows().size());
  EXPECT_EQ(*table.ComputeDigest(), digest);
}

void ExpectRandomBatchesAgreeWithTheModel(const TableLayout& layout, int num_batches) {
  const int dim = layout.dim;
  EmbeddingTable table(layout, kJobSeed);
  ModelTable model(layout);
  std::mt19937_64 random(Seed());
  // Few distinct keys, small and huge, so that batches meet keys of earlier ones; 0 among them.
  std::vector<Key> universe(3000);
  for (size_t i = 0; i < universe.size(); ++i) universe[i] = i % 2 == 0 ? i : random();
  for (int64_t t = 0; t < num_batches; ++t) {
    std::shuffle(universe.begin(), universe.end(), random);
    const size_t n = t % 10 == 0 ? 0 : random() % (t % 3 == 0 ? universe.size() : 40);
    const std::vector<Key> keys(universe.begin(), universe.begin() + n);
    std::vector<uint32_t> counts(n);
    for (uint32_t& count : counts) count = random() % 5;
    if (t % 4 == 3) {
      const std::vector<float> rows = RandomFloats(n * layout.row_floats(), random);
      EXPECT_TRUE(table.AssignRows(keys, counts, rows, Step(t)).ok());
      for (size_t i = 0; i < n; ++i) {
        model.Assign(keys[i], counts[i], &rows[i * layout.row_floats()]);
      }
    } else if (t % 4 == 1) {
      // Adam would move rows by a gradient of zero.
      EXPECT_TRUE(table.CountLookups(keys, counts, Step(t)).ok());
      for (size_t i = 0; i < n; ++i) model.Count(keys[i], counts[i]);
    } else {
      const std::vector<float> gradients = RandomFloats(n * dim, random);
      const RowScalars scalars = ScalarsForStep(layout.row_optimizer(), 0.05f, Step(t));
      EXPECT_TRUE(table.ApplyGradients(keys, counts, gradients, scalars, Step(t)).ok());
      for (size_t i = 0; i < n; ++i) model.Apply(keys[i], counts[i], &gradients[i * dim], scalars);
    }
    std::shuffle(universe.begin(), universe.end(), random);
    ExpectSameWeights(table, model, {universe.begin(), universe.begin() + random() % 500});
    if (testing::Test::HasFatalFailure()) return;
  }
  ExpectSameRows(table, model);
  ExpectSameWeights(table, model, universe);
  EXPECT_EQ(table.rows_created(), model.rows().size());
}

class ModelTest : public testing::TestWithParam<std::tuple<OptimizerKind, int>> {};

TEST_P(ModelTest, RandomBatchesAgreeWithTheModel) {
  const auto [kind, dim] = GetParam();
  ExpectRandomBatchesAgreeWithTheModel(MakeLayout(kind, dim), 60);
}

TEST(EmbeddingTableTest, OptimizersThatAreDrawnAgreeWithTheModel) {
  std::mt19937_64 random(Seed());
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 20; ++i) {
    TableLayout layout = MakeLayout(OptimizerKind::kSgd, 1 + draw(i % 2 == 0 ? 3 : 40));
    DrawRowOptimizers(draw, &layout);
    if (draw(2) == 0) layout.optimizer.cow_clip_ratio = 0.02f;
    if (layout.first_order.has_value() && draw(2) == 0) {
      layout.first_order->optimizer.cow_clip_floor = 0.25f;
    }
    SCOPED_TRACE(i);
    ExpectRandomBatchesAgreeWithTheModel(layout, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(OptimizersAndDims, ModelTest,
                         testing::Combine(testing::ValuesIn(kRowOptimizerKinds),
                                          testing::Values(1, 3, 16, 32, 64, 100, 128, 256)),
                         [](const auto& info) {
                           return std::string(OptimizerKindName(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// 100,000 keys in some order, as `batch` keys a call.
void InsertAll(std::vector<Key> keys, size_t batch, uint64_t shuffle_seed, EmbeddingTable* table) {
  std::mt19937_64 random(shuffle_seed);
  std::shuffle(keys.begin(), keys.end(), random);
  const int dim = table->layout().dim;
  const UpdateScalars scalars = ScalarsForStep(table->layout().optimizer, 0.1f, Step(0));
  for (size_t first = 0; first < keys.size(); first += batch) {
    const auto part = absl::MakeConstSpan(keys).subspan(first, batch);
    std::vector<float> gradients(part.size() * dim);
    for (size_t i = 0; i < part.size(); ++i) {
      std::fill_n(&gradients[i * dim], dim, static_cast<float>(part[i] % 1000) * 1e-3f);
    }
    EXPECT_TRUE(table
                    ->ApplyGradients(part, std::vector<uint32_t>(part.size(), 1), gradients,
                                     scalars, Step(0))
                    .ok());
  }
}

TEST(EmbeddingTableTest, GrowthKeepsEveryRowAndDigestIgnoresTheOrder) {
  std::vector<Key> keys(100000);
  std::mt19937_64 random(Seed());
  for (Key& key : keys) key = random();
  const TableLayout layout = MakeLayout(OptimizerKind::kAdagrad, 4);
  EmbeddingTable one(layout, kJobSeed);
  EmbeddingTable other(layout, kJobSeed);
  InsertAll(keys, 100000, 1, &one);
  InsertAll(keys, 977, 2, &other);
  EXPECT_EQ(one.num_rows(), keys.size());
  EXPECT_EQ(other.num_rows(), keys.size());
  EXPECT_EQ(*one.ComputeDigest(), *other.ComputeDigest());
  std::vector<float> a(keys.size() * 4), b(keys.size() * 4);
  EXPECT_TRUE(one.GatherWeights(keys, reinterpret_cast<uint8_t*>(a.data())).ok());
  EXPECT_TRUE(other.GatherWeights(keys, reinterpret_cast<uint8_t*>(b.data())).ok());
  EXPECT_EQ(a, b);
}

TEST(EmbeddingTableTest, RowsThatWereReservedMakeNoIndexGrow) {
  std::vector<Key> keys(100000);
  for (Key key = 0; key < keys.size(); ++key) keys[key] = key;
  const TableLayout layout = MakeLayout(OptimizerKind::kSgd, 1);
  EmbeddingTable grown(layout, kJobSeed), reserved(layout, kJobSeed);
  reserved.ReserveRows(keys.size());
  const uint64_t index_bytes = reserved.memory_bytes();
  EXPECT_GE(index_bytes, keys.size() * 20);
  InsertAll(keys, keys.size(), 1, &grown);
  InsertAll(keys, keys.size(), 1, &reserved);
  EXPECT_EQ(*reserved.ComputeDigest(), *grown.ComputeDigest());
  // A stripe with fewer keys than the others may have grown less.
  EXPECT_NEAR(static_cast<double>(reserved.memory_bytes()) / grown.memory_bytes(), 1, 0.02);
}

TEST(EmbeddingTableTest, DigestOfShardsAddsUp) {
  const TableLayout layout = MakeLayout(OptimizerKind::kAdam, 8);
  EmbeddingTable whole(layout, kJobSeed);
  std::vector<Key> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * i;
  InsertAll(keys, 512, 3, &whole);
  const ClusterMap map(3);
  std::vector<std::vector<Key>> shards(3);
  const uint64_t salt = TableSalt(layout.id);
  for (Key key : keys) shards[map.ServerOfHash(KeyHash(salt, key)).value()].push_back(key);
  Digest sum;
  for (const std::vector<Key>& shard : shards) {
    EmbeddingTable part(layout, kJobSeed);
    InsertAll(shard, 512, 4, &part);
    sum.Add(*part.ComputeDigest());
  }
  EXPECT_EQ(sum, *whole.ComputeDigest());
}

TEST(EmbeddingTableTest, ReadingLeavesNoTrace) {
  EmbeddingTable table(MakeLayout(OptimizerKind::kAdagrad, 16), kJobSeed);
  const uint64_t bytes = table.memory_bytes();
  std::vector<Key> keys(10000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<uint8_t> weights(keys.size() * 64);
  EXPECT_TRUE(table.GatherWeights(keys, weights.data()).ok());
  EXPECT_EQ(table.num_rows(), 0u);
  EXPECT_EQ(*table.ComputeDigest(), Digest{});
  EXPECT_EQ(table.memory_bytes(), bytes);
}

TEST(EmbeddingTableTest, RowsCarryTheStepOfTheirLastChange) {
  EmbeddingTable table(MakeLayout(OptimizerKind::kSgd, 16), kJobSeed);
  std::vector<Key> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<uint32_t> counts(keys.size(), 1);
  const UpdateScalars scalars = ScalarsForStep(table.layout().optimizer, 0.1f, Step(5));
  EXPECT_TRUE(table
                  .ApplyGradients(keys, counts, std::vector<float>(keys.size() * 16, 0.0f), scalars,
                                  Step(5))
                  .ok());
  EXPECT_TRUE(table.AssignRows({77}, {0}, std::vector<float>(16, 1.0f), Step(9)).ok());
  size_t visited = 0;
  EXPECT_TRUE(table
                  .VisitRows([&](Key key, absl::Span<const float>, uint32_t, Step changed) {
                    EXPECT_EQ(changed, key == 77 ? Step(9) : Step(5));
                    ++visited;
                  })
                  .ok());
  EXPECT_EQ(visited, keys.size());
}

TEST(EmbeddingTableTest, LoadedRowsAreExactAndGatheredWhole) {
  const TableLayout layout = MakeLayout(OptimizerKind::kAdam, 3);
  EmbeddingTable table(layout, kJobSeed);
  const size_t row_floats = layout.row_floats();
  std::mt19937_64 random(Seed());
  const std::vector<float> rows = RandomFloats(3 * row_floats, random);
  EXPECT_TRUE(
      table.AssignRows({0, 5}, {9, 9}, std::vector<float>(2 * row_floats, 1.0f), Step(99)).ok());
  ASSERT_TRUE(table.LoadRows({0, 5, 11}, {1, 2, 3}, {4, 0, 6}, rows).ok());
  EXPECT_TRUE(table
                  .VisitRows([&](Key key, absl::Span<const float>, uint32_t count, Step changed) {
                    EXPECT_EQ(count, key == 0 ? 1u : key == 5 ? 2u : 3u);
                    EXPECT_EQ(changed, key == 0 ? Step(3) : key == 5 ? kNoStep : Step(5));
                  })
                  .ok());
  // Key 6 has no row.
  std::vector<float> expected(rows);
  expected.resize(4 * row_floats);
  InitialRow(layout, kJobSeed, 6, absl::MakeSpan(expected).subspan(3 * row_floats));
  std::vector<uint8_t> got(4 * row_floats * sizeof(float) + 1);
  ASSERT_TRUE(table.GatherRows({0, 5, 11, 6}, got.data() + 1).ok());
  EXPECT_EQ(std::memcmp(got.data() + 1, expected.data(), got.size() - 1), 0);
  EXPECT_EQ(table.num_rows(), 3u);
}

TEST(EmbeddingTableTest, CountsSaturate) {
  EmbeddingTable table(MakeLayout(OptimizerKind::kSgd, 1), kJobSeed);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(table.AssignRows({3}, {0xC0000000u}, {1.0f}, Step(i)).ok());
  EXPECT_TRUE(table
                  .VisitRows([](Key, absl::Span<const float>, uint32_t count, Step) {
                    EXPECT_EQ(count, 0xFFFFFFFFu);
                  })
                  .ok());
}

TEST(EmbeddingTableTest, SmallTablesAreSmall) {
  EmbeddingTable three(MakeLayout(OptimizerKind::kAdagrad, 16), kJobSeed);
  InsertAll({1, 2, 3}, 3, 1, &three);
  EXPECT_LT(three.memory_bytes(), 64u << 10);
  // A dense tensor of 512 x 256 floats.
  TableLayout layout = MakeLayout(OptimizerKind::kAdam, 256);
  layout.role = TableRole::kDense;
  EmbeddingTable dense(layout, kJobSeed);
  std::vector<Key> blocks(512);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  InsertAll(blocks, 512, 1, &dense);
  EXPECT_LT(dense.memory_bytes(), 512 * 3072 * 1.2 + (64u << 10));
}

TEST(EmbeddingTableTest, MemoryStaysWithinItsBoundAtEverySize) {
  EmbeddingTable table(MakeLayout(OptimizerKind::kAdagrad, 16), kJobSeed);
  constexpr size_t kBatch = 4096;
  const UpdateScalars scalars = ScalarsForStep(table.layout().optimizer, 0.1f, Step(0));
  const std::vector<uint32_t> counts(kBatch, 1);
  const std::vector<float> gradients(kBatch * 16, 0.25f);
  std::vector<Key> keys(kBatch);
  for (Key next = 0; next < 200000;) {
    for (Key& key : keys) key = next++;
    EXPECT_TRUE(table.ApplyGradients(keys, counts, gradients, scalars, Step(0)).ok());
    if (next < 60000) continue;  // Blocks that are not full yet weigh more in a small table.
    ASSERT_LE(table.memory_bytes(), static_cast<uint64_t>(next * 128 * 1.3)) << next << " rows";
  }
}

// What `thermocline plan` says of a table before there is one.
TEST(EmbeddingTableTest, TakesTheMemoryThatIsPlanned) {
  for (const auto& [kind, dim] :
       {std::pair(OptimizerKind::kSgd, 16), std::pair(OptimizerKind::kAdagrad, 16),
        std::pair(OptimizerKind::kRowWiseAdagrad, 20), std::pair(OptimizerKind::kAdam, 64)}) {
    const TableLayout layout = MakeLayout(kind, dim);
    EmbeddingTable table(layout, kJobSeed);
    Key next = 0;
    for (const size_t rows : {1, 100, 3000, 40000, 150000}) {
      std::vector<Key> keys;
      while (next < rows) keys.push_back(next++);
      InsertAll(keys, 4096, 1, &table);
      const auto planned = static_cast<double>(TableMemoryBytes(layout, rows));
      const auto real = static_cast<double>(table.memory_bytes());
      // What doesn't grow with rows is of no weight in a plan.
      EXPECT_NEAR(planned, real, 0.03 * real + (96 << 10))
          << rows << " rows of dim " << dim << ", " << OptimizerKindName(kind);
    }
  }
}

// The keys of one of 1024 servers share the top bits of their hash; the table must not care.
TEST(EmbeddingTableTest, KeysOfOneNarrowShardSpreadEvenly) {
  const TableLayout layout = MakeLayout(OptimizerKind::kSgd, 16);
  const ClusterMap map(1024);
  const uint64_t salt = TableSalt(layout.id);
  std::vector<Key> keys;
  for (Key key = 0; keys.size() < 4000; ++key) {
    if (map.ServerOfHash(KeyHash(salt, key)) == ServerIndex(5)) keys.push_back(key);
  }
  EmbeddingTable table(layout, kJobSeed);
  InsertAll(keys, 4000, 1, &table);
  EXPECT_EQ(table.num_rows(), keys.size());
  EXPECT_LE(table.memory_bytes(), keys.size() * (64 + 4 + 40) + (256u << 10));
}

// Every weight of a row is always the same number here, so a torn read would show; and the sums
// show that no update was lost.
TEST(EmbeddingTableTest, ConcurrentReadersAndWritersSeeWholeRows) {
  TableLayout layout = MakeLayout(OptimizerKind::kSgd, 16);
  layout.init_scale = 0;
  EmbeddingTable table(layout, kJobSeed);
  constexpr size_t kKeys = 20000;
  constexpr int kRounds = 10;
  constexpr int kWriters = 2;
  const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 1.0f, Step(0));
  const auto write = [&](int writer) {
    std::mt19937_64 random(Seed() + writer);
    std::vector<Key> keys(kKeys);
    for (size_t i = 0; i < kKeys; ++i) keys[i] = i;
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(keys.begin(), keys.end(), random);
      EXPECT_TRUE(table
                      .ApplyGradients(keys, std::vector<uint32_t>(kKeys, 1),
                                      std::vector<float>(kKeys * 16, -1.0f), scalars, Step(round))
                      .ok());
    }
  };
  const auto read = [&](int reader) {
    std::mt19937_64 random(Seed() + 100 + reader);
    std::vector<Key> keys(5000);
    std::vector<float> weights(keys.size() * 16);
    for (int round = 0; round < kRounds; ++round) {
      const Key first = random() % kKeys;
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = first + i;
      EXPECT_TRUE(table.GatherWeights(keys, reinterpret_cast<uint8_t*>(weights.data())).ok());
      for (size_t i = 0; i < keys.size(); ++i) {
        for (int d = 1; d < 16; ++d) ASSERT_EQ(weights[i * 16 + d], weights[i * 16]);
      }
      table.num_rows();
      table.memory_bytes();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) threads.emplace_back(write, i);
  for (int i = 0; i < 2; ++i) threads.emplace_back(read, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.num_rows(), kKeys);
  EXPECT_TRUE(table
                  .VisitRows([](Key, absl::Span<const float> row, uint32_t count, Step changed) {
                    EXPECT_EQ(row[0], kWriters * kRounds);
                    EXPECT_EQ(count, uint32_t{kWriters * kRounds});
                    EXPECT_EQ(changed, Step(kRounds - 1));
                  })
                  .ok());
}

}  // namespace
}  // namespace thermocline
