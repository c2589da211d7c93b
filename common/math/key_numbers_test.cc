#include "common/math/key_numbers.h"

#include <limits>
#include <map>
#include <random>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

TEST(KeyNumbersTest, KeysAreNumberedAsTheyCome) {
  KeyNumbers numbers;
  numbers.Begin(3);
  EXPECT_TRUE(numbers.keys().empty());
  const Key last = std::numeric_limits<Key>::max();
  // Any function of the key will do.
  EXPECT_EQ(numbers.Add(last, 5), 0u);
  EXPECT_EQ(numbers.Add(0, 5), 1u);
  EXPECT_EQ(numbers.Add(last, 5), 0u);
  EXPECT_EQ(numbers.Add(7, 6), 2u);
  EXPECT_EQ(numbers.Add(0, 5), 1u);
  EXPECT_EQ(numbers.Add(7, 6), 2u);
  EXPECT_EQ(numbers.size(), 3u);
  EXPECT_EQ(numbers.keys(), (std::vector<Key>{last, 0, 7}));
  numbers.Begin(0);
  EXPECT_TRUE(numbers.keys().empty());
  numbers.Begin(1);
  EXPECT_EQ(numbers.Add(7, 6), 0u);
}

// One object numbers sets of all sizes in turn, full to the last key, with hashes that collide
// often and seldom.
TEST(KeyNumbersTest, AgreesWithAMap) {
  std::mt19937_64 random(TestSeed());
  KeyNumbers numbers;
  for (int round = 0; round < 50; ++round) {
    const size_t max_keys = size_t{1} << random() % 12;
    const uint64_t hash_mask = round % 5 == 0 ? 3 : ~uint64_t{0};
    std::map<Key, uint32_t> expected;
    std::vector<Key> in_order;
    numbers.Begin(max_keys);
    for (size_t i = 0; i < 3 * max_keys; ++i) {
      const Key key = random() % max_keys * 0x100000001;
      const auto [at, is_new] = expected.emplace(key, in_order.size());
      if (is_new) in_order.push_back(key);
      const uint64_t hash = Mix64(key) & hash_mask;
      numbers.Prefetch(hash);
      ASSERT_EQ(numbers.Add(key, hash), at->second);
    }
    EXPECT_EQ(numbers.keys(), in_order);
  }
}

}  // namespace
}  // namespace thermocline
