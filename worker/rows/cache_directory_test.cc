#include "worker/rows/cache_directory.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/key_of_hash.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

const uint64_t kSalt = TableSalt(TableId(3));

int32_t FindOrAdd(CacheDirectory* directory, Key key) {
  int32_t entry = -1;
  directory->FindOrAdd(absl::MakeConstSpan(&key, 1), &entry);
  return entry;
}

void ExpectNew(const CacheEntry& entry, Key key) {
  EXPECT_EQ(entry.key, key);
  EXPECT_EQ(entry.last_use, -1);
  EXPECT_EQ(entry.row, kNoRow);
  EXPECT_EQ(entry.step, -1);
  EXPECT_EQ(entry.uses, 0);
}

TEST(CacheDirectoryTest, AnEntryBelongsToItsKey) {
  CacheDirectory directory(kSalt);
  EXPECT_EQ(directory.size(), 0u);
  std::set<int32_t> entries;
  for (Key key : {Key{0}, Key{7}, ~Key{0}}) {
    const int32_t entry = FindOrAdd(&directory, key);
    EXPECT_TRUE(entries.insert(entry).second);
    ExpectNew(directory[entry], key);
  }
  EXPECT_EQ(directory.size(), 3u);
  const int32_t of_seven = FindOrAdd(&directory, 7);
  EXPECT_EQ(entries.count(of_seven), 1u);
  EXPECT_EQ(directory[of_seven].key, 7u);
  EXPECT_EQ(directory.size(), 3u);
}

TEST(CacheDirectoryTest, OneCallFindsSomeAndMakesOthers) {
  CacheDirectory directory(kSalt);
  std::vector<Key> keys(1000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = 3 * i;
  std::vector<int32_t> first(keys.size()), second(keys.size());
  directory.FindOrAdd(keys, first.data());
  for (int32_t entry : first) directory[entry].row = entry;
  for (size_t i = 0; i < keys.size(); i += 2) keys[i] += 1;
  directory.FindOrAdd(keys, second.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i % 2 == 1) {
      EXPECT_EQ(second[i], first[i]);
      EXPECT_EQ(directory[second[i]].row, second[i]);
    } else {
      ExpectNew(directory[second[i]], keys[i]);
    }
  }
  EXPECT_EQ(directory.size(), 1500u);
}

TEST(CacheDirectoryTest, WhatIsRemovedIsForgottenAndItsNumberGivenAgain) {
  CacheDirectory directory(kSalt);
  const int32_t kept = FindOrAdd(&directory, 1);
  std::set<int32_t> numbers;
  for (Key key = 2; key < 10000; ++key) {
    const int32_t entry = FindOrAdd(&directory, key);
    CacheEntry& to = directory[entry];
    to.last_use = to.row = to.step = 5;
    to.uses = 3;
    directory.Remove(absl::MakeConstSpan(&entry, 1));
    const int32_t again = FindOrAdd(&directory, key);
    ExpectNew(directory[again], key);
    directory.Remove(absl::MakeConstSpan(&again, 1));
    numbers.insert({entry, again});
    ASSERT_EQ(directory.size(), 1u);
  }
  EXPECT_EQ(numbers.count(kept), 0u);
  EXPECT_LT(numbers.size(), 100u);
  EXPECT_EQ(FindOrAdd(&directory, 1), kept);
}

// Runs the directory and hash maps of the standard library side by side.
class Twins {
 public:
  explicit Twins(std::mt19937_64* random) : random_(*random), directory_(kSalt) {}

  void FindOrAddSome(const std::vector<Key>& pool) {
    std::vector<Key> keys(pool);
    std::shuffle(keys.begin(), keys.end(), random_);
    keys.resize(std::min<size_t>(keys.size(), Draw(0, 150)));
    std::vector<int32_t> entries(keys.size());
    directory_.FindOrAdd(keys, entries.data());
    for (size_t i = 0; i < keys.size(); ++i) Check(keys[i], entries[i]);
    most_ = std::max(most_, numbers_.size());
  }

  // Each with a likelihood of `percent`.
  void RemoveSome(int percent) {
    std::vector<int32_t> gone;
    for (auto it = known_.begin(); it != known_.end();) {
      if (Draw(1, 100) > percent) {
        ++it;
        continue;
      }
      gone.push_back(it->second.number);
      numbers_.erase(it->second.number);
      it = known_.erase(it);
    }
    std::shuffle(gone.begin(), gone.end(), random_);
    directory_.Remove(gone);
  }

  void ExpectTheSame() {
    ASSERT_EQ(directory_.size(), numbers_.size());
    for (const auto& [key, known] : known_) {
      ASSERT_EQ(FindOrAdd(&directory_, key), known.number);
      ASSERT_EQ(directory_[known.number].row, known.row);
    }
    ASSERT_EQ(directory_.size(), numbers_.size());
  }

  size_t most() const { return most_; }

 private:
  struct Known {
    int32_t number;
    int32_t row;  // what the test wrote there
  };

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void Check(Key key, int32_t number) {
    const auto [known, is_new] = known_.try_emplace(key, Known{number, ++last_row_});
    CacheEntry& entry = directory_[number];
    if (is_new) {
      ASSERT_TRUE(numbers_.insert(number).second) << "one number for two keys";
      // At most as many numbers as there ever were keys, and some made ahead.
      ASSERT_LE(number, static_cast<int32_t>(std::max(most_, numbers_.size())) + 64);
      ExpectNew(entry, key);
      entry = {key, 1, last_row_, 2, entry.bucket, 4};
      return;
    }
    ASSERT_EQ(number, known->second.number);
    ASSERT_EQ(entry.key, key);
    ASSERT_EQ(entry.row, known->second.row);
  }

  std::mt19937_64& random_;
  CacheDirectory directory_;
  std::unordered_map<Key, Known> known_;
  std::unordered_set<int32_t> numbers_;  // of those known
  size_t most_ = 0;                      // of them at a time
  int32_t last_row_ = 0;
};

enum class KeyKind { kPlain, kSameTags, kEdge };

std::vector<Key> MakePool(KeyKind kind, int size) {
  std::vector<Key> keys;
  for (int i = 0; i < size; ++i) {
    uint64_t hash = Mix64(i);
    // Four and four have the same upper half.
    if (kind == KeyKind::kSameTags) hash = Mix64(i / 4) >> 32 << 32 | static_cast<uint32_t>(i);
    // All belong to the last buckets or the first, however many there are.
    if (kind == KeyKind::kEdge) hash = hash >> 16 | (0xFFFEull + i % 3) << 48;
    keys.push_back(kind == KeyKind::kPlain ? static_cast<Key>(i) : KeyOfHash(kSalt, hash));
  }
  return keys;
}

TEST(CacheDirectoryTest, DoesAsHashMapsDo) {
  std::mt19937_64 random(TestSeed());
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  size_t most = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE("trace " + std::to_string(i));
    const auto kind = static_cast<KeyKind>(i % 3);
    const bool is_large = i % 10 == 0 && kind != KeyKind::kEdge;
    const int size = is_large ? 2000 : draw(1, 200);
    const std::vector<Key> pool = MakePool(kind, size);
    Twins twins(&random);
    for (int step = 0; step < 60; ++step) {
      twins.FindOrAddSome(pool);
      // The directory grows, shrinks, and is emptied now and then.
      const int most_percent = is_large ? 3 : draw(0, 3) == 0 ? 100 : 20;
      if (draw(0, 1) == 0) twins.RemoveSome(draw(0, most_percent));
      if (step % 20 == 19) twins.ExpectTheSame();
      if (HasFailure()) return;
    }
    twins.RemoveSome(100);
    twins.ExpectTheSame();
    most = std::max(most, twins.most());
  }
  EXPECT_GT(most, 1000u);  // Far more than there was room for at first.
}

}  // namespace
}  // namespace thermocline
