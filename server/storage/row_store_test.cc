#include "server/storage/row_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/fixed_array.h"
#include "common/base/hash.h"
#include "server/storage/rocksdb_row_store.h"
#include "server/storage/testing/memory_row_store.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

TableLayout MakeLayout(uint32_t id, int dim) {
  TableLayout layout;
  layout.id = TableId(id);
  layout.name = "C" + std::to_string(id);
  layout.dim = dim;
  return layout;
}

std::string FreshDirectory(const std::string& name) {
  const std::string directory = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(directory);
  return directory;
}

using Rows = std::map<Key, std::string>;

// In the order of (partition, key).
std::vector<std::pair<Key, std::string>> Sorted(const Rows& rows, TableId table) {
  std::vector<std::pair<Key, std::string>> sorted(rows.begin(), rows.end());
  const auto place = [salt = TableSalt(table)](Key key) {
    return std::make_pair(PartitionOfHash(KeyHash(salt, key)), key);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&](const auto& a, const auto& b) { return place(a.first) < place(b.first); });
  return sorted;
}

std::vector<std::pair<Key, std::string>> ReadAll(RowCursor* cursor, size_t row_bytes,
                                                 size_t max_rows) {
  std::vector<std::pair<Key, std::string>> all;
  std::vector<Key> keys;
  UninitializedVector<uint8_t> rows;
  do {
    const absl::Status status = cursor->Next(max_rows, &keys, &rows);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LE(keys.size(), max_rows);
    EXPECT_EQ(rows.size(), keys.size() * row_bytes);
    for (size_t i = 0; i < keys.size(); ++i) {
      all.emplace_back(
          keys[i], std::string(reinterpret_cast<char*>(rows.data()) + i * row_bytes, row_bytes));
    }
  } while (!keys.empty());
  return all;
}

void WriteRandom(RowStore* store, size_t row_bytes, size_t n, std::mt19937_64* random, Rows* rows) {
  Rows batch;
  for (size_t i = 0; i < n; ++i) {
    std::string row(row_bytes, '\0');
    for (char& c : row) c = static_cast<char>((*random)());
    batch[(*random)() % 3000] = row;
  }
  std::vector<Key> keys;
  std::string bytes;
  for (const auto& [key, row] : batch) {
    keys.push_back(key);
    bytes += row;
    (*rows)[key] = row;
  }
  const absl::Status written = store->Write(
      keys, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  ASSERT_TRUE(written.ok()) << written;
}

void ExpectHas(RowStore* store, size_t row_bytes, const Rows& rows, std::mt19937_64* random) {
  std::vector<Key> keys;
  for (Key key = 0; key < 3100; ++key) {
    if ((*random)() % 3 != 0) keys.push_back(key);
  }
  std::shuffle(keys.begin(), keys.end(), *random);
  std::vector<uint8_t> got(keys.size() * row_bytes, 0xAB);
  absl::FixedArray<bool> found(keys.size());
  const absl::Status read =
      store->MultiGet(keys, absl::MakeSpan(got), absl::MakeSpan(found.data(), found.size()));
  ASSERT_TRUE(read.ok()) << read;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto expected = rows.find(keys[i]);
    ASSERT_EQ(found[i], expected != rows.end());
    const std::string unchanged(row_bytes, '\xAB');
    const std::string& row = found[i] ? expected->second : unchanged;
    ASSERT_EQ(std::memcmp(&got[i * row_bytes], row.data(), row_bytes), 0);
  }
}

class RowStoreTest : public testing::TestWithParam<bool> {
 protected:
  RowStoreTest() {
    if (GetParam()) {
      opener_ = std::make_unique<RocksDbRowStoreOpener>(FreshDirectory("row_store_test"));
    } else {
      opener_ = std::make_unique<MemoryRowStoreOpener>();
    }
  }
  std::unique_ptr<RowStoreOpener> opener_;
};

TEST_P(RowStoreTest, TablesAgreeWithMapsAndCursorsStayAsTheyWere) {
  std::mt19937_64 random(Seed());
  const std::vector<TableLayout> layouts = {MakeLayout(0, 1), MakeLayout(255, 7),
                                            MakeLayout(256, 16), MakeLayout(0xFFFFFFFF, 3)};
  std::vector<std::unique_ptr<RowStore>> stores;
  for (const TableLayout& layout : layouts) stores.push_back(*opener_->Open(layout));
  std::vector<Rows> rows(layouts.size());
  std::vector<Rows> at_cursor(layouts.size());
  std::vector<std::unique_ptr<RowCursor>> cursors(layouts.size());
  for (int round = 0; round < 40; ++round) {
    const size_t t = random() % layouts.size();
    const size_t row_bytes = StoredRowBytes(layouts[t]);
    WriteRandom(stores[t].get(), row_bytes, random() % 300, &random, &rows[t]);
    std::vector<Key> erased = {12345};  // Not there.
    for (auto row = rows[t].begin(); row != rows[t].end();) {
      const auto at = row++;
      if (random() % 10 != 0) continue;
      erased.push_back(at->first);
      rows[t].erase(at);
    }
    ASSERT_TRUE(stores[t]->Erase(erased).ok());
    ExpectHas(stores[t].get(), row_bytes, rows[t], &random);
    if (HasFatalFailure()) return;
    if (random() % 3 != 0) continue;
    if (cursors[t] != nullptr) {
      ASSERT_EQ(ReadAll(cursors[t].get(), row_bytes, 1 + random() % 500),
                Sorted(at_cursor[t], layouts[t].id));
    }
    cursors[t] = stores[t]->NewCursor();
    at_cursor[t] = rows[t];
  }
  cursors.clear();
  stores.clear();  // Before the opener.
}

TEST_P(RowStoreTest, CountsItsBytes) {
  const TableLayout layout = MakeLayout(1, 16);
  const std::unique_ptr<RowStore> store = *opener_->Open(layout);
  EXPECT_EQ(store->bytes(), 0u);
  std::mt19937_64 random(Seed());
  Rows rows;
  WriteRandom(store.get(), StoredRowBytes(layout), 3000, &random, &rows);
  EXPECT_GT(store->bytes(), rows.size() * StoredRowBytes(layout) / 2);
}

INSTANTIATE_TEST_SUITE_P(Stores, RowStoreTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "RocksDb" : "Memory"; });

TEST(MemoryRowStoreTest, FailsWhenTold) {
  MemoryRowStore store(MakeLayout(1, 1));
  store.FailReads(absl::UnavailableError("read"));
  store.FailWrites(absl::ResourceExhaustedError("write"));
  EXPECT_EQ(store.MultiGet({}, {}, {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store.Write({}, {}).code(), absl::StatusCode::kResourceExhausted);
}

constexpr size_t kManyRows = 60000;  // More than stays in memory.

// Rows whose floats are all their key.
absl::Status WriteMany(RowStore* store, const TableLayout& layout) {
  const size_t row_bytes = StoredRowBytes(layout);
  std::vector<Key> keys(1000);
  std::vector<uint8_t> rows(keys.size() * row_bytes);
  for (Key next = 0; next < kManyRows;) {
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = next++;
      std::memset(&rows[i * row_bytes], static_cast<int>(keys[i] % 251), row_bytes);
    }
    const absl::Status written = store->Write(keys, rows);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

std::vector<std::string> TableFiles(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".sst") files.push_back(entry.path());
  }
  return files;
}

TEST(RocksDbRowStoreTest, DamageIsAnErrorAndNeverAWrongRow) {
  const std::string directory = FreshDirectory("damaged");
  RocksDbRowStoreOpener opener(directory);
  const TableLayout layout = MakeLayout(5, 256);
  const std::unique_ptr<RowStore> store = *opener.Open(layout);
  ASSERT_TRUE(WriteMany(store.get(), layout).ok());
  // Written by a thread of its own.
  for (int i = 0; i < 200 && TableFiles(directory).empty(); ++i) usleep(50'000);
  const std::vector<std::string> files = TableFiles(directory);
  ASSERT_FALSE(files.empty());
  const uintmax_t bytes = std::filesystem::file_size(files[0]);
  std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
  for (uintmax_t at = 1000; at + 100000 < bytes; at += 50000) {
    file.seekp(static_cast<std::streamoff>(at));
    file.write("damage", 6);
  }
  file.close();

  const size_t row_bytes = StoredRowBytes(layout);
  std::vector<uint8_t> row(row_bytes);
  size_t damaged = 0;
  for (Key key = 0; key < kManyRows; ++key) {
    bool found = false;
    const absl::Status read =
        store->MultiGet({key}, absl::MakeSpan(row), absl::MakeSpan(&found, 1));
    if (read.ok()) {
      ASSERT_TRUE(found);
      ASSERT_EQ(row, std::vector<uint8_t>(row_bytes, static_cast<uint8_t>(key % 251)));
    } else {
      ASSERT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
      EXPECT_NE(read.message().find("table 'C5'"), absl::string_view::npos) << read;
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 0u);
}

TEST(RocksDbRowStoreTest, BeginsEmpty) {
  const std::string directory = FreshDirectory("left");
  const TableLayout layout = MakeLayout(5, 256);
  {
    RocksDbRowStoreOpener opener(directory);
    const std::unique_ptr<RowStore> store = *opener.Open(layout);
    ASSERT_TRUE(WriteMany(store.get(), layout).ok());
    // In use.
    RocksDbRowStoreOpener other(directory);
    EXPECT_EQ(other.Open(layout).status().code(), absl::StatusCode::kUnavailable);
  }
  RocksDbRowStoreOpener opener(directory);
  const std::unique_ptr<RowStore> store = *opener.Open(layout);
  const std::unique_ptr<RowCursor> cursor = store->NewCursor();
  EXPECT_TRUE(ReadAll(cursor.get(), StoredRowBytes(layout), 10).empty());
}

}  // namespace
}  // namespace thermocline
