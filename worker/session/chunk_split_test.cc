#include <random>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "common/wire/codec.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

size_t WidthOfTable(const wire::PushSlice& slice) { return 1 + slice.table.value(); }

// A header whose every field is as long as it can be.
wire::Header LongestHeader() {
  return {std::string(kMaxJobIdBytes, 'j'), UINT64_MAX, WorkerRank(UINT32_MAX), Step(INT64_MIN)};
}

size_t RequestBytes(const std::vector<PullSlice>& chunk) {
  const wire::Header header = LongestHeader();
  std::vector<wire::PullTableView> tables;
  for (const PullSlice& slice : chunk) tables.push_back({slice.table, slice.keys});
  return wire::EncodedBytes(wire::PullView{header, wire::PullKind::kRead, Step(INT64_MIN),
                                           UINT32_MAX, Step(INT64_MIN), tables,
                                           /*with_state=*/true});
}

size_t ReplyBytes(const std::vector<PullSlice>& chunk) {
  std::vector<wire::PullReplyBuilder::Table> tables;
  for (const PullSlice& slice : chunk) {
    tables.push_back({slice.table, slice.rows.size() * sizeof(float)});
  }
  return wire::PullReplyBuilder::EncodedBytes({wire::Readiness::kRecovering, Step(INT64_MIN)},
                                              tables);
}

size_t RequestBytes(const std::vector<wire::PushSlice>& chunk) {
  const wire::Header header = LongestHeader();
  return wire::EncodedBytes(
      wire::PushView{header, Step(INT64_MIN), UINT32_MAX, UINT32_MAX, 0.1f, chunk});
}

// Random slices of several tables with random keys in ascending order. A table's rows are
// 1 + its id floats wide.
struct RandomLayout {
  explicit RandomLayout(std::mt19937_64* random) : keys((*random)() % 6) {
    counts.resize(keys.size());
    values.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      // Ids of every length on the wire; wide rows among narrow ones.
      const auto table =
          TableId(static_cast<uint32_t>((*random)() % 3 == 0 ? (*random)() % 300 : i));
      keys[i].resize((*random)() % 200);
      for (Key& key : keys[i]) key = num_keys++;
      for (const Key key : keys[i]) counts[i].push_back(static_cast<uint32_t>(key % 7));
      values[i].resize(keys[i].size() * (1 + table.value()), 0.5f);
      pushes.push_back({table, wire::PushKind::kAssign, keys[i], counts[i], values[i]});
      pulls.push_back({table, keys[i], absl::MakeSpan(values[i])});
    }
  }
  size_t Bytes(size_t bytes_per_key) const {
    size_t bytes = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      bytes += keys[i].size() * bytes_per_key + values[i].size() * sizeof(float);
    }
    return bytes;
  }

  std::vector<std::vector<Key>> keys;
  std::vector<std::vector<uint32_t>> counts;
  std::vector<std::vector<float>> values;
  std::vector<wire::PushSlice> pushes;
  std::vector<PullSlice> pulls;
  Key num_keys = 0;
};

TEST(ChunkSplitTest, NoKeysGiveNoChunks) {
  EXPECT_TRUE(SplitPush({}, 1000, WidthOfTable).empty());
  EXPECT_TRUE(SplitPush({wire::PushSlice{}}, 1000, WidthOfTable).empty());
}

TEST(ChunkSplitTest, ARowLargerThanAChunkTravelsAlone) {
  const std::vector<Key> keys = {1, 2};
  std::vector<float> rows(2 * 100);
  const PullSlice slice = {TableId(0), keys, absl::MakeSpan(rows)};
  for (const size_t max_message_bytes : {size_t{1}, kMaxHeaderBytes, kMaxHeaderBytes + 50}) {
    const auto chunks =
        SplitPull({slice}, max_message_bytes, [](const PullSlice&) { return size_t{100}; });
    ASSERT_EQ(chunks.size(), 2u);
    EXPECT_EQ(chunks[1][0].keys[0], 2u);
    EXPECT_EQ(chunks[1][0].rows.data(), rows.data() + 100);
  }
}

TEST(ChunkSplitTest, TheHeadersAreTheLongestThereAre) {
  EXPECT_LE(RequestBytes(std::vector<wire::PushSlice>()), kMaxHeaderBytes);
  EXPECT_LE(RequestBytes(std::vector<PullSlice>()), kMaxHeaderBytes);
  EXPECT_LE(ReplyBytes(std::vector<PullSlice>()), kMaxHeaderBytes);
  const std::vector<Key> keys(1 << 16);
  const std::vector<uint32_t> counts(1 << 16);
  std::vector<float> values(1 << 20);
  const TableId table(UINT32_MAX);
  const wire::PushSlice push = {table, wire::PushKind::kAssign, keys, counts, values};
  EXPECT_LE(
      RequestBytes(std::vector<wire::PushSlice>{push}),
      kMaxHeaderBytes + kMaxSliceHeaderBytes + 12 * keys.size() + sizeof(float) * values.size());
  const PullSlice pull = {table, keys, absl::MakeSpan(values)};
  EXPECT_LE(ReplyBytes({pull}),
            kMaxHeaderBytes + kMaxSliceHeaderBytes + sizeof(float) * values.size());
}

TEST(ChunkSplitTest, NoMessageIsOverTheLimit) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    const RandomLayout layout(&random);
    const size_t one_row = kMaxHeaderBytes + kMaxSliceHeaderBytes + 12 + 4 * 300;
    const size_t max_message_bytes = one_row + random() % (round % 2 == 0 ? 300 : 30000);
    for (const auto& chunk : SplitPush(layout.pushes, max_message_bytes, WidthOfTable)) {
      EXPECT_LE(RequestBytes(chunk), max_message_bytes);
    }
    const auto pulls = SplitPull(layout.pulls, max_message_bytes,
                                 [](const PullSlice& slice) { return 1 + slice.table.value(); });
    for (const std::vector<PullSlice>& chunk : pulls) {
      EXPECT_LE(RequestBytes(chunk), max_message_bytes);
      EXPECT_LE(ReplyBytes(chunk), max_message_bytes);
    }
  }
}

// A job may set cluster.max_message_bytes to no less than this (common/job/job_validate.cc), and no
// table's dim beyond kMaxDim: so every row that a job may have fits.
TEST(ChunkSplitTest, TheLargestRowFitsTheSmallestMessage) {
  constexpr size_t kSmallestMessage = 64 << 10;
  for (const OptimizerKind kind : kAllOptimizerKinds) {
    OptimizerConfig optimizer;
    optimizer.kind = kind;
    const size_t width = kMaxDim + StateFloats(optimizer, kMaxDim);
    const std::vector<Key> keys(3, UINT64_MAX);
    const std::vector<uint32_t> counts(3, UINT32_MAX);
    std::vector<float> values(3 * width);
    const wire::PushSlice push = {TableId(UINT32_MAX), wire::PushKind::kAssign, keys, counts,
                                  values};
    for (const auto& chunk :
         SplitPush({push}, kSmallestMessage, [&](const wire::PushSlice&) { return width; })) {
      EXPECT_LE(RequestBytes(chunk), kSmallestMessage);
    }
  }
}

TEST(ChunkSplitTest, ChunksAreEvenAndTogetherTheWhole) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    const RandomLayout layout(&random);
    const size_t largest_key = 12 + 4 * 300;
    const size_t max_bytes = 10 * largest_key + random() % 30000;
    const auto chunks = SplitPush(layout.pushes, kMaxHeaderBytes + max_bytes, WidthOfTable);
    // A chunk may waste less than the next key and its slice's header need.
    const size_t wasted = largest_key + kMaxSliceHeaderBytes * layout.keys.size();
    EXPECT_LE(chunks.size(), 1 + layout.Bytes(12) / (max_bytes - wasted));
    const size_t even = chunks.empty() ? 0 : layout.Bytes(12) / chunks.size();
    Key expected = 0;
    for (const std::vector<wire::PushSlice>& chunk : chunks) {
      size_t bytes = 0;
      for (const wire::PushSlice& slice : chunk) {
        bytes += 12 * slice.keys.size() + 4 * slice.values.size();
      }
      EXPECT_GE(2 * (bytes + wasted), even);
      for (const wire::PushSlice& slice : chunk) {
        ASSERT_FALSE(slice.keys.empty());
        ASSERT_EQ(slice.kind, wire::PushKind::kAssign);
        ASSERT_EQ(slice.values.size(), slice.keys.size() * WidthOfTable(slice));
        for (size_t i = 0; i < slice.keys.size(); ++i) {
          ASSERT_EQ(slice.keys[i], expected);
          ASSERT_EQ(slice.counts[i], expected % 7);
          ++expected;
        }
      }
    }
    EXPECT_EQ(expected, layout.num_keys);
  }
}

}  // namespace
}  // namespace thermocline
