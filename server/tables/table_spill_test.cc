// Tables that hold a part of their rows in a store must be what tables in memory are.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/storage/rocksdb_row_store.h"
#include "server/storage/testing/memory_row_store.h"
#include "server/tables/embedding_table.h"
#include "server/tables/testing/table_fixtures.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

constexpr uint64_t kJobSeed = testing_tables::kJobSeed;
using testing_tables::AddFirstOrderWeight;
using testing_tables::Changer;
using testing_tables::CopyOf;
using testing_tables::MakeLayout;
using testing_tables::ReadAll;
using testing_tables::Rows;

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

// All keys that a Changer may touch, and some that it doesn't.
std::vector<Key> AllKeys(uint64_t num_keys) {
  std::vector<Key> keys;
  for (Key key = 0; key < num_keys + 50; ++key) keys.push_back(key % 2 == 0 ? key : key << 40);
  return keys;
}

std::vector<uint8_t> WeightsOf(const EmbeddingTable& table, const std::vector<Key>& keys) {
  std::vector<uint8_t> weights(keys.size() * table.layout().dim * sizeof(float));
  EXPECT_TRUE(table.GatherWeights(keys, weights.data()).ok());
  return weights;
}

std::vector<uint8_t> RowsOf(const EmbeddingTable& table, const std::vector<Key>& keys) {
  std::vector<uint8_t> rows(keys.size() * table.layout().row_floats() * sizeof(float));
  const auto leave = EmbeddingTable::ReadBack::kLeave;
  EXPECT_TRUE(table.GatherRows(keys, rows.data(), leave).ok());
  return rows;
}

enum class Store { kMemory, kRocksDb };
struct Case {
  Store store;
  OptimizerKind optimizer;
  uint64_t budget_bytes;
  uint32_t min_count = 0;
  uint64_t unused_steps = 0;
};

class SpillTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr uint64_t kKeys = 4000;

  SpillTest() : layout_(MakeLayout(GetParam().optimizer, 5)) {
    layout_.memory_budget_bytes = GetParam().budget_bytes;
    layout_.min_count = GetParam().min_count;
    layout_.unused_steps = GetParam().unused_steps;
    if (GetParam().optimizer == OptimizerKind::kFtrl) AddFirstOrderWeight(&layout_);
    if (GetParam().store == Store::kRocksDb) {
      const std::string directory = testing::TempDir() + "/spill_test";
      std::filesystem::remove_all(directory);
      opener_ = std::make_unique<RocksDbRowStoreOpener>(directory);
    } else {
      opener_ = std::make_unique<MemoryRowStoreOpener>();
    }
    TableSpill spill;
    spill.store = *opener_->Open(layout_);
    spill.on_broken = [](const absl::Status& status) { ADD_FAILURE() << status; };
    table_ = std::make_unique<EmbeddingTable>(layout_, kJobSeed, std::move(spill));
    in_memory_ = std::make_unique<EmbeddingTable>(layout_, kJobSeed);
  }

  void ExpectSame() {
    const std::vector<Key> keys = AllKeys(kKeys);
    EXPECT_EQ(table_->num_rows(), in_memory_->num_rows());
    EXPECT_EQ(*table_->ComputeDigest(), *in_memory_->ComputeDigest());
    EXPECT_TRUE(WeightsOf(*table_, keys) == WeightsOf(*in_memory_, keys));
    EXPECT_TRUE(RowsOf(*table_, keys) == RowsOf(*in_memory_, keys));
    EXPECT_TRUE(CopyOf(*table_, kNoStep) == CopyOf(*in_memory_, kNoStep));
  }

  TableLayout layout_;
  std::unique_ptr<RowStoreOpener> opener_;
  std::unique_ptr<EmbeddingTable> table_;
  std::unique_ptr<EmbeddingTable> in_memory_;  // The specification.
};

TEST_P(SpillTest, IsTheTableInMemoryStepByStep) {
  Changer changer(table_.get(), kKeys, Seed());
  Changer model(in_memory_.get(), kKeys, Seed());
  for (int i = 0; i < 12; ++i) {
    changer.RunStep();
    model.RunStep();
    ExpectSame();
    if (HasFailure()) return;
  }
  const bool all_fit = GetParam().budget_bytes >= 1 << 20;
  EXPECT_EQ(table_->spill_stats()->rows_spilled == 0, all_fit);
  EXPECT_EQ(table_->spill_stats()->rows_read_back == 0, all_fit);
}

TEST_P(SpillTest, LoadedRowsAreExact) {
  std::mt19937_64 random(Seed());
  for (int i = 0; i < 4; ++i) {
    std::vector<Key> keys = AllKeys(1500);
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(1000);
    std::vector<uint32_t> counts(keys.size()), changed(keys.size());
    std::vector<float> rows(keys.size() * layout_.row_floats());
    for (uint32_t& count : counts) count = static_cast<uint32_t>(random());
    for (uint32_t& step : changed) step = random() % 100;
    for (float& f : rows) f = static_cast<float>(random() % 1000);
    for (EmbeddingTable* table : {table_.get(), in_memory_.get()}) {
      ASSERT_TRUE(table->LoadRows(keys, counts, changed, rows).ok());
    }
  }
  ExpectSame();
}

// Readers bring rows back and the spiller takes them away while steps change them and snapshots are
// read. An update that is lost shows in the digest, a row of the wrong time in the snapshot.
TEST_P(SpillTest, IsTheTableInMemoryWhateverHappensMeanwhile) {
  std::mt19937_64 random(Seed());
  Changer changer(table_.get(), kKeys, Seed() + 1);
  Changer model(in_memory_.get(), kKeys, Seed() + 1);
  std::atomic<bool> end{false};
  const auto read = [&](int reader) {
    std::mt19937_64 reader_random(Seed() + 100 + reader);
    const std::vector<Key> all = AllKeys(kKeys);
    while (!end.load()) {
      const size_t n = 1 + reader_random() % 500;
      const size_t first = reader_random() % (all.size() - n);
      const std::vector<Key> keys(all.begin() + first, all.begin() + first + n);
      reader_random() % 3 == 0 ? RowsOf(*table_, keys) : WeightsOf(*table_, keys);
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back(read, i);
  Step base = kNoStep;
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    const Step changed_after = random() % 2 == 0 ? kNoStep : base;
    const Rows expected = CopyOf(*in_memory_, changed_after);
    const Step cut = changer.step();
    auto snapshot = table_->BeginSnapshot(cut, changed_after);
    std::thread apply([&] {
      for (int i = 0; i < 4; ++i) {
        changer.RunStep();
        model.RunStep();
      }
    });
    if (random() % 4 != 0) {
      const Rows got = ReadAll(snapshot.get(), layout_);
      EXPECT_EQ(got.size(), expected.size());
      EXPECT_TRUE(got == expected);
      base = cut;
    }
    snapshot.reset();
    apply.join();
    EXPECT_EQ(*table_->ComputeDigest(), *in_memory_->ComputeDigest());
  }
  end = true;
  for (std::thread& reader : readers) reader.join();
  ExpectSame();
}

INSTANTIATE_TEST_SUITE_P(
    Stores, SpillTest,
    testing::Values(Case{Store::kMemory, OptimizerKind::kSgd, 1},  // 8 rows a stripe
                    Case{Store::kMemory, OptimizerKind::kAdam, 100 << 10},
                    Case{Store::kMemory, OptimizerKind::kFtrl, 100 << 10},
                    Case{Store::kMemory, OptimizerKind::kAdagrad, 1 << 20},  // All of them
                    Case{Store::kRocksDb, OptimizerKind::kAdagrad, 50 << 10},
                    Case{Store::kMemory, OptimizerKind::kAdagrad, 50 << 10, /*min_count=*/3},
                    Case{Store::kMemory, OptimizerKind::kSgd, 1, 0, /*unused_steps=*/3},
                    Case{Store::kRocksDb, OptimizerKind::kAdam, 50 << 10, 2, 9}),
    [](const auto& info) {
      return std::string(info.param.store == Store::kMemory ? "Memory" : "RocksDb") + "_" +
             std::string(OptimizerKindName(info.param.optimizer)) +
             (info.param.min_count > 0 ? "_counted" : "") +
             (info.param.unused_steps > 0 ? "_forgetting" : "");
    });

// With a store whose errors the test chooses.
class SpillErrorTest : public testing::Test {
 protected:
  static constexpr uint64_t kKeys = 3000;

  SpillErrorTest() : layout_(MakeLayout(OptimizerKind::kSgd, 4)) {
    layout_.memory_budget_bytes = 20 << 10;
    auto store = std::make_unique<MemoryRowStore>(layout_);
    store_ = store.get();
    TableSpill spill;
    spill.store = std::move(store);
    spill.on_broken = [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      broken_ = status;
    };
    table_ = std::make_unique<EmbeddingTable>(layout_, kJobSeed, std::move(spill));
  }

  absl::Status ApplyAll(Step step) {
    const std::vector<Key> keys = AllKeys(kKeys);
    const UpdateScalars scalars = ScalarsForStep(layout_.optimizer, 1.0f, step);
    return table_->ApplyGradients(keys, std::vector<uint32_t>(keys.size(), 1),
                                  std::vector<float>(keys.size() * 4, 1.0f), scalars, step);
  }
  static bool IsError(absl::Status* status) { return !status->ok(); }

  TableLayout layout_;
  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  MemoryRowStore* store_;
  std::unique_ptr<EmbeddingTable> table_;
};

TEST_F(SpillErrorTest, AReadErrorNamesTheTableAndChangesNothingOfAPull) {
  ASSERT_TRUE(ApplyAll(Step(0)).ok());
  const Digest digest = *table_->ComputeDigest();
  const std::vector<Key> keys = AllKeys(kKeys);
  std::vector<uint8_t> weights(keys.size() * 16);
  for (const absl::Status& error : {absl::UnavailableError("gone"), absl::DataLossError("bad")}) {
    store_->FailReads(error);
    const absl::Status read = table_->GatherWeights(keys, weights.data());
    EXPECT_EQ(read.code(), error.code());
    EXPECT_NE(read.message().find("table 'C3'"), absl::string_view::npos) << read;
    EXPECT_EQ(table_->GatherRows(keys, weights.data()).code(), error.code());
    EXPECT_EQ(ApplyAll(Step(1)).code(), error.code());
  }
  store_->FailReads(absl::OkStatus());
  EXPECT_TRUE(table_->GatherWeights(keys, weights.data()).ok());
  EXPECT_EQ(table_->num_rows(), keys.size());
  EXPECT_FALSE(digest == *table_->ComputeDigest());  // A part of the failed steps.
}

TEST_F(SpillErrorTest, AFullDiskKeepsRowsInMemoryUntilThereIsRoom) {
  store_->FailWrites(absl::ResourceExhaustedError("no space in SPILL"));
  ASSERT_TRUE(ApplyAll(Step(0)).ok());
  while (table_->CheckRoom().ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(table_->CheckRoom().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(table_->CheckRoom().message().find("SPILL"), absl::string_view::npos);
  EXPECT_EQ(table_->spill_stats()->rows_in_memory, table_->num_rows());
  ASSERT_TRUE(ApplyAll(Step(1)).ok());  // What was accepted before can be applied.
  const Digest digest = *table_->ComputeDigest();
  store_->FailWrites(absl::OkStatus());
  while (!table_->CheckRoom().ok()) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(table_->GatherWeights({1}, std::vector<uint8_t>(16).data()).ok());
  EXPECT_EQ(*table_->ComputeDigest(), digest);
  EXPECT_LT(table_->spill_stats()->rows_in_memory, table_->num_rows());
}

TEST_F(SpillErrorTest, AnyOtherWriteErrorIsTheEnd) {
  store_->FailWrites(absl::UnavailableError("the disk is gone"));
  ASSERT_TRUE(ApplyAll(Step(0)).ok());
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&SpillErrorTest::IsError, &broken_));
  EXPECT_EQ(broken_.code(), absl::StatusCode::kUnavailable);
}

TEST(TableSpillTest, MemoryStaysWithinTheBudgetWhateverIsAskedFor) {
  TableLayout layout = MakeLayout(OptimizerKind::kAdagrad, 16);
  layout.memory_budget_bytes = 8 << 20;  // 50,000 rows
  TableSpill spill;
  spill.store = std::make_unique<MemoryRowStore>(layout);
  EmbeddingTable table(layout, kJobSeed, std::move(spill));
  constexpr size_t kBatch = 5000;
  constexpr Key kKeys = 300000;
  const std::vector<uint32_t> counts(kBatch, 1);
  const std::vector<float> gradients(kBatch * 16, 0.25f);
  std::vector<uint8_t> weights(kBatch * 64);
  std::vector<Key> keys(kBatch);
  std::mt19937_64 random(Seed());
  const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 0.1f, Step(0));
  for (Key next = 0; next < kKeys;) {
    for (Key& key : keys) key = next++;
    ASSERT_TRUE(table.ApplyGradients(keys, counts, gradients, scalars, Step(0)).ok());
    const Key first = random() % (next - kBatch + 1);
    for (size_t i = 0; i < kBatch; ++i) keys[i] = first + i;
    ASSERT_TRUE(table.GatherWeights(keys, weights.data()).ok());
    ASSERT_LE(table.memory_bytes(), layout.memory_budget_bytes * 1.1 + (512 << 10)) << next;
  }
  EXPECT_EQ(table.num_rows(), kKeys);
  EXPECT_GT(table.spill_stats()->rows_in_memory, 30000u);
}

TEST(TableSpillTest, CandidatesThatGetTheirRowsKeepTheBudget) {
  TableLayout layout = MakeLayout(OptimizerKind::kAdagrad, 16);
  layout.memory_budget_bytes = 1 << 20;  // 6,000 rows
  layout.min_count = 2;
  TableSpill spill;
  spill.store = std::make_unique<MemoryRowStore>(layout);
  EmbeddingTable table(layout, kJobSeed, std::move(spill));
  std::vector<Key> keys(40000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  for (int64_t step = 0; step < 2; ++step) {
    const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 0.1f, Step(step));
    ASSERT_TRUE(table
                    .ApplyGradients(keys, std::vector<uint32_t>(keys.size(), 1),
                                    std::vector<float>(keys.size() * 16, 0.25f), scalars,
                                    Step(step))
                    .ok());
    EXPECT_EQ(table.num_rows(), step == 0 ? 0 : keys.size());
    EXPECT_EQ(table.num_candidates(), step == 0 ? keys.size() : 0);
    EXPECT_LT(table.spill_stats()->rows_in_memory, 12000u);
  }
}

TEST(TableSpillTest, ForgottenRowsLeaveTheStore) {
  TableLayout layout = MakeLayout(OptimizerKind::kSgd, 4);
  layout.memory_budget_bytes = 1;
  layout.unused_steps = 2;
  TableSpill spill;
  spill.store = std::make_unique<MemoryRowStore>(layout);
  EmbeddingTable table(layout, kJobSeed, std::move(spill));
  const std::vector<Key> all = AllKeys(20000);
  const auto apply = [&](absl::Span<const Key> keys, Step step) {
    const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 1.0f, step);
    ASSERT_TRUE(table
                    .ApplyGradients(keys, std::vector<uint32_t>(keys.size(), 1),
                                    std::vector<float>(keys.size() * 4, 1.0f), scalars, step)
                    .ok());
    table.Forget(step);
  };
  apply(all, Step(0));
  const uint64_t all_bytes = table.spill_stats()->bytes_spilled;
  const auto some = absl::MakeConstSpan(all).first(1000);
  for (int64_t step = 1; step <= 2; ++step) apply(some, Step(step));
  EXPECT_EQ(table.num_rows(), some.size());
  EXPECT_EQ(table.rows_forgotten(), all.size() - some.size());
  while (table.spill_stats()->bytes_spilled > all_bytes / 10) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(table.num_rows(), some.size());
}

// Rows that are used once pass through memory, and don't drive out those that every step uses.
TEST(TableSpillTest, RowsThatStepsUseAgainStayInMemory) {
  TableLayout layout = MakeLayout(OptimizerKind::kAdagrad, 16);
  layout.memory_budget_bytes = 1 << 20;  // 6,000 rows
  TableSpill spill;
  spill.store = std::make_unique<MemoryRowStore>(layout);
  EmbeddingTable table(layout, kJobSeed, std::move(spill));
  constexpr Key kUsedAgain = 1000;
  constexpr Key kOnceAStep = 200;
  constexpr Key kKeys = 60000;
  const auto step = [&](Key first_once) {
    std::vector<Key> keys;
    for (Key key = 0; key < kUsedAgain; ++key) keys.push_back(key);
    for (Key key = 0; key < kOnceAStep; ++key) keys.push_back(first_once + key);
    const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 0.1f, Step(0));
    ASSERT_TRUE(table.GatherWeights(keys, std::vector<uint8_t>(keys.size() * 64).data()).ok());
    ASSERT_TRUE(table
                    .ApplyGradients(keys, std::vector<uint32_t>(keys.size(), 1),
                                    std::vector<float>(keys.size() * 16, 0.25f), scalars, Step(0))
                    .ok());
  };
  const auto all_steps = [&] {
    for (Key first = kUsedAgain; first < kKeys; first += kOnceAStep) step(first);
  };
  all_steps();
  const uint64_t read_back = table.spill_stats()->rows_read_back;
  all_steps();
  // Rows that are used once come back once, or again if they left before they were changed.
  EXPECT_LT(table.spill_stats()->rows_read_back - read_back, kKeys + kKeys / 10);
}

// A snapshot keeps old images of what memory alone had. Others are in the store as they were.
TEST(TableSpillTest, ASnapshotTakesABoundedAmountOfMemory) {
  TableLayout layout = MakeLayout(OptimizerKind::kAdagrad, 16);
  layout.memory_budget_bytes = 1 << 20;
  TableSpill spill;
  spill.store = std::make_unique<MemoryRowStore>(layout);
  EmbeddingTable table(layout, kJobSeed, std::move(spill));
  constexpr size_t kBatch = 2000;
  constexpr Key kKeys = 60000;  // 8 MB
  const std::vector<uint32_t> counts(kBatch, 1);
  const std::vector<float> gradients(kBatch * 16, 0.25f);
  std::vector<uint8_t> weights(kBatch * 64);
  std::vector<Key> keys(kBatch);
  uint64_t most_bytes = 0;
  const auto apply_all = [&](Step step, bool read_first) {
    const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 0.1f, step);
    for (Key next = 0; next < kKeys;) {
      for (Key& key : keys) key = next++;
      if (read_first) {
        ASSERT_TRUE(table.GatherWeights(keys, weights.data()).ok());
      }
      ASSERT_TRUE(table.ApplyGradients(keys, counts, gradients, scalars, step).ok());
      most_bytes = std::max(most_bytes, table.memory_bytes());
    }
  };
  apply_all(Step(0), false);
  const Rows expected = CopyOf(table, kNoStep);
  const auto snapshot = table.BeginSnapshot(Step(0), kNoStep);
  apply_all(Step(1), false);
  apply_all(Step(2), true);
  EXPECT_LE(most_bytes, 3 * layout.memory_budget_bytes + (512 << 10));
  EXPECT_TRUE(ReadAll(snapshot.get(), layout) == expected);
}

}  // namespace
}  // namespace thermocline
