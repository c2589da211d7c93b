#include "worker/sparse/part_split.h"

#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

uint64_t TestSeed() {
  const char* text = std::getenv("THERMOCLINE_TEST_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  std::cout << "THERMOCLINE_TEST_SEED=" << seed << std::endl;
  return seed;
}

size_t WidthOfTable(const PushSlice& slice) { return 1 + slice.table.value(); }

size_t BytesOf(const std::vector<PushSlice>& part) {
  size_t bytes = 0;
  for (const PushSlice& slice : part) {
    bytes += slice.keys.size() * (sizeof(Key) + sizeof(uint32_t)) + slice.values.size() * 4;
  }
  return bytes;
}

TEST(PartSplitTest, NoKeysGiveNoParts) {
  EXPECT_TRUE(SplitPush({}, 100, WidthOfTable).empty());
  EXPECT_TRUE(SplitPush({PushSlice{}}, 100, WidthOfTable).empty());
}

TEST(PartSplitTest, ARowLargerThanAPartTravelsAlone) {
  const std::vector<Key> keys = {1, 2};
  std::vector<float> rows(2 * 100);
  const PullSlice slice = {TableId(0), keys, absl::MakeSpan(rows)};
  const auto parts = SplitPull({slice}, 50, [](const PullSlice&) { return size_t{100}; });
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1][0].keys[0], 2u);
  EXPECT_EQ(parts[1][0].rows.data(), rows.data() + 100);
}

TEST(PartSplitTest, PartsAreEvenAndTogetherTheWhole) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<Key>> keys(random() % 6);
    std::vector<std::vector<uint32_t>> counts(keys.size());
    std::vector<std::vector<float>> values(keys.size());
    std::vector<PushSlice> slices;
    Key next = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      for (size_t n = random() % 200; n > 0; --n) {
        keys[i].push_back(next);
        counts[i].push_back(static_cast<uint32_t>(next++ % 7));
        values[i].insert(values[i].end(), i + 1, static_cast<float>(next));
      }
      slices.push_back({TableId(static_cast<uint32_t>(i)), wire::PushKind::kAssign, keys[i],
                        counts[i], values[i]});
    }
    const size_t max_bytes = 100 + random() % 1000;
    const auto parts = SplitPush(slices, max_bytes, WidthOfTable);
    const size_t total = BytesOf(slices);
    ASSERT_LE(parts.size(), (total + max_bytes - 1) / max_bytes);
    Key expected = 0;
    for (const std::vector<PushSlice>& part : parts) {
      const size_t one_key = 12 + 4 * keys.size();
      EXPECT_LE(BytesOf(part), max_bytes + one_key);
      if (&part != &parts.back()) {
        EXPECT_GE(BytesOf(part), total / ((total + max_bytes - 1) / max_bytes));
      }
      for (const PushSlice& slice : part) {
        ASSERT_FALSE(slice.keys.empty());
        ASSERT_EQ(slice.kind, wire::PushKind::kAssign);
        ASSERT_EQ(slice.values.size(), slice.keys.size() * WidthOfTable(slice));
        for (size_t i = 0; i < slice.keys.size(); ++i) {
          ASSERT_EQ(slice.keys[i], expected);
          ASSERT_EQ(slice.counts[i], expected % 7);
          ++expected;
          ASSERT_EQ(slice.values[i * WidthOfTable(slice)], static_cast<float>(expected));
        }
      }
    }
    EXPECT_EQ(expected, next);
  }
}

}  // namespace
}  // namespace thermocline
