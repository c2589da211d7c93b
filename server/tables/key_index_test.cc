#include "server/tables/key_index.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

#include "common/base/hash.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

constexpr uint64_t kSalt = 7;

uint32_t PlaceOf(Key key) { return KeyIndex::PlaceOfHash(KeyHash(kSalt, key)); }

void ExpectSame(const KeyIndex& index, const std::unordered_map<Key, uint32_t>& model) {
  ASSERT_EQ(index.size(), model.size());
  size_t visited = 0;
  index.ForEach([&](Key key, uint32_t row) {
    ++visited;
    const auto found = model.find(key);
    ASSERT_NE(found, model.end());
    EXPECT_EQ(found->second, row);
  });
  EXPECT_EQ(visited, model.size());
  std::vector<KeyRow> keys(model.size() + 1);
  ASSERT_EQ(index.CopyKeys(keys.data()), model.size());
  keys.pop_back();
  for (const KeyRow& key : keys) EXPECT_EQ(model.at(key.key), key.row);
}

// Few keys, so that each is inserted and erased many times; 0 among them, which is what the keys of
// unused entries are.
TEST(KeyIndexTest, AgreesWithAMapOverInsertsAndErasures) {
  std::mt19937_64 random(TestSeed());
  for (const uint64_t num_keys : {3, 12, 200, 5000}) {
    KeyIndex index;
    index.Init(kSalt, 0.5);
    std::unordered_map<Key, uint32_t> model;
    for (int i = 0; i < 60000; ++i) {
      const Key key = random() % num_keys;
      const auto found = model.find(key);
      ASSERT_EQ(index.Find(key, PlaceOf(key)), found == model.end() ? 0 : found->second) << key;
      if (found == model.end()) {
        const uint32_t row = 1 + static_cast<uint32_t>(random() % 1000000);
        index.Insert(key, PlaceOf(key), row);
        model[key] = row;
      } else if (random() % 4 != 0) {
        index.Erase(key, PlaceOf(key));
        model.erase(found);
      }
    }
    ExpectSame(index, model);
    for (Key key = 0; key < num_keys; ++key) {
      if (model.erase(key) == 1) index.Erase(key, PlaceOf(key));
    }
    EXPECT_EQ(index.size(), 0u);
    for (uint32_t at = 0; at < index.num_buckets(); ++at) EXPECT_EQ(index.bucket(at).passed, 0u);
  }
}

// All keys in one place: full buckets, passed over and filled again.
TEST(KeyIndexTest, KeysOfOnePlaceFillOneBucketAfterTheOther) {
  std::mt19937_64 random(TestSeed());
  KeyIndex index;
  index.Init(kSalt, 0.5);
  for (Key key = 1000; key < 1200; ++key) index.Insert(key, PlaceOf(key), 1);  // Grows it.
  for (Key key = 1000; key < 1200; ++key) index.Erase(key, PlaceOf(key));
  std::unordered_map<Key, uint32_t> model;
  for (int i = 0; i < 20000; ++i) {
    const Key key = random() % 40;
    ASSERT_EQ(index.Find(key, 0xFFFFFFFF), model.count(key) == 0 ? 0 : model[key]) << key;
    if (model.count(key) == 0) {
      model[key] = i + 1;
      index.Insert(key, 0xFFFFFFFF, i + 1);
    } else {
      model.erase(key);
      index.Erase(key, 0xFFFFFFFF);
    }
  }
  ExpectSame(index, model);
}

// So an index that was loaded is as large as one that has grown, and no key is lost on the way.
TEST(KeyIndexTest, ReservingGrowsItAsFarAsSoManyKeysWould) {
  for (const size_t num_keys : {1, 4, 5, 100, 3000, 50000}) {
    KeyIndex grown, reserved;
    for (KeyIndex* index : {&grown, &reserved}) index->Init(kSalt, 0.5);
    std::unordered_map<Key, uint32_t> model;
    for (Key key = 0; key < num_keys; ++key) {
      if (key == num_keys / 3) reserved.Reserve(num_keys);
      const uint32_t buckets = reserved.num_buckets();
      for (KeyIndex* index : {&grown, &reserved}) index->Insert(key, PlaceOf(key), 1);
      model[key] = 1;
      if (key >= num_keys / 3) {
        EXPECT_EQ(reserved.num_buckets(), buckets);
      }
    }
    EXPECT_EQ(reserved.num_buckets(), grown.num_buckets()) << num_keys;
    ExpectSame(reserved, model);
    reserved.Reserve(num_keys);
    EXPECT_EQ(reserved.num_buckets(), grown.num_buckets()) << num_keys;
  }
}

}  // namespace
}  // namespace thermocline
