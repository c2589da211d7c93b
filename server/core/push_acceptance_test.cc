#include "server/core/push_acceptance.h"

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing/core_fixtures.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using Order = PushLedger::Order;

TEST(PushLedgerTest, StartsBeforeTheFirstStep) {
  const PushLedger ledger(2);
  EXPECT_EQ(ledger.accepted_through(WorkerRank(1)), kNoStep);
  EXPECT_EQ(ledger.OrderOf(WorkerRank(1), Step(0)), Order::kNext);
  EXPECT_EQ(ledger.OrderOf(WorkerRank(1), Step(1)), Order::kEarly);
}

TEST(PushLedgerTest, WorkersDontMatterToEachOther) {
  PushLedger ledger(2);
  for (int64_t step = 0; step <= 3; ++step) ledger.Accept(WorkerRank(0), Step(step));
  EXPECT_EQ(ledger.OrderOf(WorkerRank(0), Step(3)), Order::kDuplicate);
  EXPECT_EQ(ledger.OrderOf(WorkerRank(1), Step(3)), Order::kEarly);
}

TEST(PushLedgerTest, AnUnknownAcknowledgementIsDataLoss) {
  PushLedger ledger(1);
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), kNoStep).ok());
  EXPECT_EQ(ledger.CheckAcknowledged(WorkerRank(0), Step(0)).code(), absl::StatusCode::kDataLoss);
  for (int64_t step = 0; step <= 2; ++step) ledger.Accept(WorkerRank(0), Step(step));
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), Step(1)).ok());
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), Step(2)).ok());
  EXPECT_EQ(ledger.CheckAcknowledged(WorkerRank(0), Step(3)).code(), absl::StatusCode::kDataLoss);
}

// Against a model that remembers every step on its own.
TEST(PushLedgerTest, AgreesWithASetOfSteps) {
  std::mt19937_64 random(TestSeed());
  const uint32_t num_workers = 3;
  PushLedger ledger(num_workers);
  std::vector<std::set<int64_t>> steps(num_workers);
  for (int i = 0; i < 3000; ++i) {
    const uint32_t rank = random() % num_workers;
    const std::set<int64_t>& known = steps[rank];
    const int64_t end = static_cast<int64_t>(known.size());
    const int64_t step = std::max<int64_t>(0, end + static_cast<int64_t>(random() % 5) - 2);
    const Order order = ledger.OrderOf(WorkerRank(rank), Step(step));
    if (known.count(step) > 0) {
      ASSERT_EQ(order, Order::kDuplicate);
    } else if (step > 0 && known.count(step - 1) == 0) {
      ASSERT_EQ(order, Order::kEarly);
    } else {
      ASSERT_EQ(order, Order::kNext);
      ledger.Accept(WorkerRank(rank), Step(step));
      steps[rank].insert(step);
    }
    ASSERT_EQ(ledger.accepted_through(WorkerRank(rank)).value(),
              static_cast<int64_t>(steps[rank].size()) - 1);
  }
}

using testing_core::AddRange;
using testing_core::MakeChunk;
using Added = PushAssembly::Added;

wire::PushChunk Chunk(uint32_t chunk, uint32_t num_chunks, float value = 1.0f) {
  wire::PushChunk made = MakeChunk(0, 0, chunk, num_chunks);
  AddRange(&made, 0, {chunk}, {value, value});
  return made;
}

TEST(PushAssemblyTest, ChunksMayComeInAnyOrderAndTwice) {
  PushAssembly assembly;
  EXPECT_EQ(*assembly.Add(Chunk(2, 3)), Added::kStored);
  EXPECT_EQ(*assembly.Add(Chunk(0, 3)), Added::kStored);
  const uint64_t bytes = assembly.bytes();
  EXPECT_EQ(*assembly.Add(Chunk(2, 3)), Added::kDuplicate);
  EXPECT_EQ(assembly.bytes(), bytes);
  EXPECT_EQ(*assembly.Add(Chunk(1, 3)), Added::kComplete);

  const AssembledPush push = assembly.Take();
  ASSERT_EQ(push.chunks.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(push.chunks[i].keys[0], i);
  EXPECT_EQ(push.bytes, bytes / 2 * 3);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  EXPECT_EQ(*assembly.Add(Chunk(0, 1)), Added::kComplete);
}

TEST(PushAssemblyTest, AChunkThatIsNotStoredIsNotMovedFrom) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Chunk(0, 2)).ok());
  wire::PushChunk again = Chunk(0, 2);
  ASSERT_EQ(*assembly.Add(std::move(again)), Added::kDuplicate);
  EXPECT_EQ(again.keys.size(), 1u);
}

TEST(PushAssemblyTest, RefusesWhatContradictsTheFirstChunk) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Chunk(0, 2)).ok());
  const auto code = [&](wire::PushChunk chunk) {
    return assembly.Add(std::move(chunk)).status().code();
  };
  EXPECT_EQ(code(Chunk(1, 3)), absl::StatusCode::kInvalidArgument);
  wire::PushChunk later = Chunk(1, 2);
  later.step = Step(1);
  EXPECT_EQ(code(later), absl::StatusCode::kInvalidArgument);
  wire::PushChunk faster = Chunk(1, 2);
  faster.learning_rate = 2.0f;
  EXPECT_EQ(code(faster), absl::StatusCode::kInvalidArgument);
  // The same chunk with other values, keys or ranges.
  EXPECT_EQ(code(Chunk(0, 2, 3.0f)), absl::StatusCode::kInvalidArgument);
  wire::PushChunk assign = Chunk(0, 2);
  assign.tables[0].kind = wire::PushKind::kAssign;
  EXPECT_EQ(code(assign), absl::StatusCode::kInvalidArgument);
  // None of them left a trace.
  EXPECT_EQ(*assembly.Add(Chunk(1, 2)), Added::kComplete);
  EXPECT_EQ(assembly.Take().chunks[0].values[0], 1.0f);
}

TEST(PushAssemblyTest, ADroppedChunkLeavesNoTrace) {
  PushAssembly assembly;
  ASSERT_EQ(*assembly.Add(Chunk(0, 1)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  ASSERT_EQ(*assembly.Add(Chunk(1, 2)), Added::kStored);  // It has another number of chunks.
  ASSERT_EQ(*assembly.Add(Chunk(0, 2)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_EQ(*assembly.Add(Chunk(0, 2, 5.0f)), Added::kComplete);
  EXPECT_EQ(assembly.Take().chunks[0].values[0], 5.0f);
}

TEST(PushAssemblyTest, RefusesChunkNumbersOutOfRange) {
  PushAssembly assembly;
  for (const auto& [chunk, num_chunks] : {std::pair<uint32_t, uint32_t>{0, 0},
                                          {2, 2},
                                          {7, 2},
                                          {0, kMaxChunks + 1},
                                          {0, UINT32_MAX}}) {
    EXPECT_EQ(assembly.Add(Chunk(chunk, num_chunks)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(assembly.empty());
}

using testing_core::AddRange;
using testing_core::MakeChunk;

void Add(wire::PushChunk* chunk, uint32_t table, const std::vector<Key>& keys,
         wire::PushKind kind = wire::PushKind::kGradient) {
  AddRange(chunk, table, keys, std::vector<float>(keys.size(), 1.0f), kind);
}

class DistinctKeysTest : public ::testing::Test {
 protected:
  wire::PushChunk& chunk(uint32_t index) {
    return chunks_.try_emplace(index, MakeChunk(2, 7, index, 9)).first->second;
  }
  void ExpectTwice(Key key, uint32_t table) {
    const absl::Status status = distinct_.Check(chunks_);
    EXPECT_EQ(status,
              absl::InvalidArgumentError("rank 2, step 7: the push has key " + std::to_string(key) +
                                         " of table " + std::to_string(table) + " twice"));
  }

  std::map<uint32_t, wire::PushChunk> chunks_;
  DistinctKeys distinct_;
};

TEST_F(DistinctKeysTest, OneKeyOfSeveralTablesAndKinds) {
  Add(&chunk(0), 3, {0, 1, std::numeric_limits<Key>::max()});
  Add(&chunk(0), 4, {0, 1});
  Add(&chunk(1), 3, {0, 1}, wire::PushKind::kAssign);
  Add(&chunk(1), 3, {0, 1}, wire::PushKind::kCount);
  EXPECT_TRUE(distinct_.Check(chunks_).ok());
  EXPECT_TRUE(distinct_.Check(chunks_).ok());  // Nothing is left of the check before.
  EXPECT_TRUE(distinct_.Check({}).ok());
}

TEST_F(DistinctKeysTest, WithinARange) {
  Add(&chunk(0), 3, {5, 0, 8, 0});
  ExpectTwice(0, 3);
}

TEST_F(DistinctKeysTest, BetweenRangesOfAChunk) {
  Add(&chunk(0), 3, {5});
  Add(&chunk(0), 4, {6});
  Add(&chunk(0), 3, {5});
  ExpectTwice(5, 3);
}

TEST_F(DistinctKeysTest, BetweenChunks) {
  Add(&chunk(0), 3, {5, 6}, wire::PushKind::kAssign);
  Add(&chunk(8), 3, {7, 6}, wire::PushKind::kAssign);
  ExpectTwice(6, 3);
}

TEST_F(DistinctKeysTest, AmongKeysWithoutAGradient) {
  Add(&chunk(0), 3, {5}, wire::PushKind::kCount);
  Add(&chunk(1), 3, {5}, wire::PushKind::kCount);
  ExpectTwice(5, 3);
}

TEST_F(DistinctKeysTest, ManyKeysThenFew) {
  std::vector<Key> keys(600'000);  // More than it keeps memory for.
  std::iota(keys.begin(), keys.end(), 0);
  Add(&chunk(0), 3, keys);
  Add(&chunk(1), 4, keys);
  EXPECT_TRUE(distinct_.Check(chunks_).ok());
  Add(&chunk(2), 4, {599'999});
  ExpectTwice(599'999, 4);
  chunks_.clear();
  Add(&chunk(0), 4, {599'999});
  EXPECT_TRUE(distinct_.Check(chunks_).ok());
}

}  // namespace
}  // namespace thermocline
