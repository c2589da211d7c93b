// Servers whose tables have memory budgets.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/checkpoint_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "server/core/testing/checkpointed_server.h"
#include "server/core/testing/core_fixtures.h"
#include "server/storage/testing/memory_row_store.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using testing_core::AddRange;
using testing_core::CheckpointedServer;
using testing_core::ComposeManifest;
using testing_core::MakeChunk;
using testing_core::MakeConfig;
using testing_core::MakePull;
using testing_core::RandomChunk;

constexpr Key kKeys = 3000;

ServerConfig WithBudgets(ServerConfig config, uint64_t bytes) {
  for (TableLayout& table : config.tables) table.memory_budget_bytes = bytes;
  return config;
}

TEST(MemoryBudgetTest, RowsAreThoseOfAServerWithoutAndSoAreCheckpoints) {
  SimulatedDisk disk;
  const ServerConfig in_memory_config = MakeConfig(1);
  ServerConfig config = WithBudgets(in_memory_config, 1);
  config.checkpoint_directory = "/checkpoints";
  config.checkpoint_every_steps = 4;
  CheckpointedServer in_memory(&disk, in_memory_config, "/in-memory");
  CheckpointedServer spilling(&disk, config, "/spilling");
  ASSERT_TRUE(in_memory.Configure("").ok());
  ASSERT_TRUE(spilling.Configure("").ok());
  const auto train = [&](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      for (CheckpointedServer* server : {&in_memory, &spilling}) {
        ASSERT_TRUE(server->Push(RandomChunk(0, step, 0, 1, 0, 1, kKeys)).ok());
      }
    }
  };
  train(0, 3);
  const auto at_cut = in_memory.Rows();
  train(4, 6);
  EXPECT_TRUE(in_memory.Rows() == spilling.Rows());
  EXPECT_TRUE(in_memory.ComputeDigest() == spilling.ComputeDigest());
  const TableStats table = spilling.Stats().tables(0);
  EXPECT_GT(table.rows_spilled(), 0u);
  EXPECT_LT(table.rows_in_memory(), table.rows());
  EXPECT_EQ(table.rows(), in_memory.Stats().tables(0).rows());

  const CutStatus cut = spilling.WriteCut(3);
  ASSERT_EQ(cut.state(), CutStatus::WRITTEN) << cut.ShortDebugString();
  CheckpointStore store(&disk, config.checkpoint_directory);
  ASSERT_TRUE(store.Commit(*ComposeManifest(store, config, 3, {cut.shard()})).ok());
  for (const uint64_t budget_bytes : {0, 1}) {
    ServerConfig next = WithBudgets(config, budget_bytes);
    next.generation = config.generation + 1 + budget_bytes;
    CheckpointedServer restored(&disk, next, absl::StrCat("/restored-", budget_bytes));
    ASSERT_TRUE(restored.Configure(CheckpointName(Step(3))).ok());
    EXPECT_TRUE(restored.Rows() == at_cut);
  }
}

// A store that the test may break.
class BreakableStores : public RowStoreOpener {
 public:
  absl::StatusOr<std::unique_ptr<RowStore>> Open(const TableLayout& layout) override {
    auto store = std::make_unique<MemoryRowStore>(layout);
    stores.push_back(store.get());
    return store;
  }
  std::vector<MemoryRowStore*> stores;
};

class BreakableServer : public testing::Test {
 protected:
  BreakableServer() {
    SpillIo spill;
    spill.stores = &stores_;
    spill.on_broken = [this](const absl::Status& status) { broken_ = status; };
    core_ =
        std::make_unique<ServerCore>(ServerLimits(), &scheduler_, nullptr, CheckpointIo(), spill);
    EXPECT_TRUE(core_->Configure(WithBudgets(MakeConfig(1), 1)).ok());
  }

  absl::Status PushAll(int64_t step) {
    wire::PushChunk chunk = MakeChunk(0, step);
    std::vector<Key> keys(kKeys);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    AddRange(&chunk, 0, keys, std::vector<float>(2 * keys.size(), 1.0f));
    absl::Status status;
    core_->Push(chunk, [&](const auto& answer) { status = answer.status(); });
    return status;
  }

  BreakableStores stores_;
  VirtualScheduler scheduler_;
  absl::Status broken_;
  std::unique_ptr<ServerCore> core_;
};

TEST_F(BreakableServer, AnApplyThatCannotReadIsTheEnd) {
  ASSERT_TRUE(PushAll(0).ok());
  stores_.stores[0]->FailReads(absl::UnavailableError("gone"));
  std::vector<float> rows(2 * kKeys);
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const absl::Status read = core_->ReadRows(TableId(0), keys, /*with_state=*/false,
                                            reinterpret_cast<uint8_t*>(rows.data()));
  EXPECT_EQ(read.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(broken_.ok());  // A pull that fails changes nothing.
  EXPECT_TRUE(PushAll(1).ok());
  EXPECT_EQ(broken_.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(broken_.message()), HasSubstr("step 1: table 'T0'"));
  EXPECT_EQ(PushAll(2).code(), StatusCode::kUnavailable);  // Shutting down.
  // It would wait for the end of an apply that never ends.
  const absl::Status visited =
      core_->VisitRows(TableId(0), [](Key, absl::Span<const float>, uint32_t, Step) {});
  EXPECT_EQ(visited, broken_);
}

TEST_F(BreakableServer, AFullDiskRefusesPushesBeforeTheyCount) {
  stores_.stores[0]->FailWrites(absl::ResourceExhaustedError("no space in SPILL"));
  ASSERT_TRUE(PushAll(0).ok());
  absl::Status refused;
  while ((refused = PushAll(0)).ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("SPILL"));
  ServerStats stats;
  core_->FillStats(&stats);
  EXPECT_EQ(stats.requests_refused(), 1u);
  stores_.stores[0]->FailWrites(absl::OkStatus());
  while (!PushAll(1).ok()) absl::SleepFor(absl::Milliseconds(1));
  stats.Clear();
  core_->FillStats(&stats);
  EXPECT_EQ(stats.complete_through(), 1);
  EXPECT_TRUE(broken_.ok());
}

TEST(MemoryBudgetTest, ARestoreThatCannotSpillEndsBeforeMemoryDoes) {
  // Nothing can be written to its stores.
  class FullStores : public RowStoreOpener {
   public:
    absl::StatusOr<std::unique_ptr<RowStore>> Open(const TableLayout& layout) override {
      auto store = std::make_unique<MemoryRowStore>(layout);
      store->FailWrites(absl::ResourceExhaustedError("no space in SPILL"));
      return store;
    }
  };
  constexpr Key kManyKeys = 60000;
  SimulatedDisk disk;
  ServerConfig config = MakeConfig(1);
  config.checkpoint_directory = "/checkpoints";
  config.checkpoint_every_steps = 1;
  CheckpointedServer server(&disk, config);
  ASSERT_TRUE(server.Configure("").ok());
  ASSERT_TRUE(server.Push(RandomChunk(0, 0, 0, 1, 0, 1, kManyKeys)).ok());
  CheckpointStore store(&disk, config.checkpoint_directory);
  const auto manifest = ComposeManifest(store, config, 0, {server.WriteCut(0).shard()});
  ASSERT_TRUE(store.Commit(*manifest).ok());

  ServerConfig next = WithBudgets(config, 1);
  next.generation = config.generation + 1;
  next.base_checkpoint = CheckpointName(Step(0));
  FullStores stores;
  VirtualScheduler scheduler;
  SpillIo spill;
  spill.stores = &stores;
  ServerCore core(ServerLimits(), &scheduler, nullptr, CheckpointIo{&disk, &scheduler}, spill);
  const absl::Status full = core.Configure(next);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("SPILL"));
  // A full store is no reason to send the request again.
  absl::Status pull;
  core.Pull(MakePull(0, 1), [&](const auto& answer) { pull = answer.status(); });
  EXPECT_EQ(pull.code(), StatusCode::kAborted) << pull;
  EXPECT_THAT(std::string(pull.message()), HasSubstr("SPILL"));
}

TEST(MemoryBudgetTest, NeedsAFolderForTheRest) {
  VirtualScheduler scheduler;
  ServerCore core(ServerLimits(), &scheduler);
  const absl::Status status = core.Configure(WithBudgets(MakeConfig(1), 1));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("table 'T0' has a memory budget"));
}

}  // namespace
}  // namespace thermocline
