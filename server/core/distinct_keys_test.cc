#include "server/core/distinct_keys.h"

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing.h"

namespace thermocline {
namespace {

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
