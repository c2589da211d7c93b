// Steps while a checkpoint reads its rows: the images that rows had at the cut are kept, and a step
// waits where they would take too much memory.
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing/checkpointed_server.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using namespace testing_core;  // NOLINT: the words of these tests

ServerConfig Config(std::optional<LogDurability> durability) {
  ServerConfig config = MakeConfig(/*num_workers=*/1);
  config.durability = durability;
  config.checkpoint_full_every = 8;
  return config;
}

// Several slices of rows, all of which change in every step.
TEST(OldImageTest, StepsWaitWhereOldImagesAreAsManyAsTheyMayBe) {
  constexpr Key kRows = 40000;
  const auto push_of = [](int64_t step) {
    std::vector<Key> keys(kRows);
    std::iota(keys.begin(), keys.end(), 0);
    wire::PushChunk push = MakeChunk(0, step);
    AddRange(&push, 0, keys, std::vector<float>(2 * kRows, static_cast<float>(step + 1)));
    return push;
  };
  const ServerConfig config = Config(std::nullopt);
  SimulatedDisk other_disk;
  CheckpointedServer undisturbed(&other_disk, config, "/undisturbed");
  ASSERT_TRUE(undisturbed.Configure().ok());
  for (const bool tiny : {false, true}) {
    for (const char* end : {"written", "called off", "failed"}) {
      SimulatedDisk disk;
      CheckpointedServer server(&disk, config);
      server.LeaveLogTasks();
      server.limits().max_old_image_share = 0;
      server.limits().min_old_image_bytes = tiny ? 0 : kRows * 20;  // Less than all images.
      server.Die();
      ASSERT_TRUE(CheckpointStore(&disk, kCheckpoints).Prepare().ok());
      ASSERT_TRUE(server.Configure().ok());
      ASSERT_TRUE(server.Checkpoint(CheckpointRequest::NAME_CUT, 0).ok());
      for (int64_t step = 0; step < 5; ++step) {
        EXPECT_EQ(server.Push(push_of(step))->accepted_through, Step(step));
      }
      // Step 1 changed all rows.
      EXPECT_EQ(server.Stats().complete_through(), 1);
      EXPECT_EQ(server.Stats().tables(0).old_image_waits(), 1u);
      EXPECT_GE(server.Stats().tables(0).old_image_bytes(), kRows * 2 * sizeof(float));
      if (end == std::string("called off")) {
        ASSERT_TRUE(server.Checkpoint(CheckpointRequest::CALL_OFF, 0).ok());
      } else if (end == std::string("failed")) {
        disk.SetFreeBytes(600'000);  // One of three files.
      }
      bool went_on_early = false;
      for (bool some = true; some;) {
        some = server.WriteSlice();
        while (server.RunLogTask()) some = true;
        const auto cut = server.CutAt(0);
        went_on_early |= cut.has_value() && cut->state() == CutStatus::WRITING &&
                         server.Stats().complete_through() == 4;
      }
      if (end == std::string("written")) {
        EXPECT_EQ(server.CutAt(0)->state(), CutStatus::WRITTEN);
        uint64_t rows = 0;
        const CheckpointShard shard = server.CutAt(0)->shard();
        ASSERT_EQ(shard.files_size(), 3);
        for (const CheckpointFile& file : shard.files()) rows += file.rows();
        EXPECT_EQ(rows, kRows);
        EXPECT_TRUE(went_on_early);
      }
      if (end != std::string("written")) {  // Nothing is left of what any thread wrote.
        const auto left = disk.List("/checkpoints/step-000000000");
        EXPECT_TRUE(!left.ok() || left->empty());
      }
      EXPECT_EQ(server.Stats().complete_through(), 4);
      EXPECT_EQ(server.Stats().tables(0).old_image_bytes(), 0u);
      for (int64_t step = server.Stats().complete_through() + 1; step < 8; ++step) {
        ASSERT_TRUE(server.Push(push_of(step)).ok());
      }
      while (undisturbed.Stats().complete_through() < 7) {
        ASSERT_TRUE(undisturbed.Push(push_of(undisturbed.Stats().complete_through() + 1)).ok());
      }
      EXPECT_TRUE(server.ComputeDigest() == undisturbed.ComputeDigest()) << end;
    }
  }
}

TEST(OldImageTest, AStepThatWaitsForOldImagesIsAppliedByTheNextProcess) {
  SimulatedDisk disk;
  CheckpointedServer server(&disk, Config(LogDurability::kProcess));
  server.limits().max_old_image_share = 0;
  server.limits().min_old_image_bytes = 0;
  server.Die();
  ASSERT_TRUE(CheckpointStore(&disk, kCheckpoints).Prepare().ok());
  ASSERT_TRUE(server.Configure().ok());
  ASSERT_TRUE(server.Checkpoint(CheckpointRequest::NAME_CUT, 0).ok());
  for (int64_t step = 0; step < 5; ++step) ASSERT_TRUE(server.Push(RandomChunk(0, step)).ok());
  EXPECT_EQ(server.Stats().complete_through(), 1);
  EXPECT_EQ(server.Stats().accepted_through(0), 4);
  const ServerStats stats = server.Stats();
  uint64_t waits = 0;
  for (const TableStats& table : stats.tables()) waits += table.old_image_waits();
  EXPECT_EQ(waits, 1u);

  server.Die();
  ASSERT_TRUE(server.Configure().ok());
  EXPECT_EQ(server.Stats().complete_through(), 4);
  EXPECT_EQ(server.Stats().accepted_through(0), 4);
  EXPECT_EQ(server.Stats().pending_push_bytes(), 0u);
  SimulatedDisk other_disk;
  CheckpointedServer undisturbed(&other_disk, Config(LogDurability::kProcess));
  ASSERT_TRUE(undisturbed.Configure().ok());
  for (int64_t step = 0; step < 5; ++step) ASSERT_TRUE(undisturbed.Push(RandomChunk(0, step)).ok());
  EXPECT_TRUE(server.ComputeDigest() == undisturbed.ComputeDigest());
}

}  // namespace
}  // namespace thermocline
