#include "common/job/cache_layout.h"

#include <random>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;

void AddTable(const std::string& name, int dim, OptimizerKind kind, JobTables* tables) {
  TableLayout table;
  table.id = TableId(static_cast<uint32_t>(tables->sparse.size()));
  table.name = name;
  table.dim = dim;
  table.optimizer.kind = kind;
  tables->sparse.push_back(std::move(table));
}

void AddFeature(int table_index, int columns, JobTables* tables) {
  tables->features.push_back({"a feature", table_index, SUM, columns});
}

// Five columns read rows of 32 bytes with their state, one rows of 48.
JobTables TwoGroups() {
  JobTables tables;
  AddTable("users", 4, OptimizerKind::kAdagrad, &tables);
  AddTable("items", 10, OptimizerKind::kSgd, &tables);
  AddTable("places", 4, OptimizerKind::kAdagrad, &tables);
  AddFeature(0, 1, &tables);
  AddFeature(2, 3, &tables);
  AddFeature(1, 1, &tables);
  AddFeature(0, 1, &tables);
  return tables;
}

absl::StatusOr<CacheLayout> LayOut(const JobTables& tables, int64_t batch_samples,
                                   uint64_t budget_bytes, CacheUse use = CacheUse::kOwned) {
  return LayOutCache(tables, batch_samples, use, budget_bytes);
}

uint64_t StagingBytes(const CacheLayout& layout) {
  uint64_t bytes = 0;
  for (const CacheGroupLayout& group : layout.groups)
    bytes += group.staging_rows * group.row_bytes();
  return bytes;
}

TEST(CacheLayoutTest, TablesOfOneDimAndOptimizerShareASlab) {
  JobTables tables = TwoGroups();
  AddTable("words", 4, OptimizerKind::kSgd, &tables);
  AddFeature(3, 1, &tables);
  AddTable("slow", 4, OptimizerKind::kAdagrad, &tables);
  tables.sparse.back().optimizer.learning_rate_scale = 0.5f;
  AddFeature(4, 1, &tables);
  const auto layout = LayOut(tables, 10, 1 << 20);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->groups.size(), 4u);
  EXPECT_THAT(layout->groups[0].tables, ElementsAre(0, 2));
  EXPECT_THAT(layout->groups[1].tables, ElementsAre(1));
  EXPECT_THAT(layout->groups[2].tables, ElementsAre(3));
  EXPECT_THAT(layout->groups[3].tables, ElementsAre(4));
  EXPECT_EQ(layout->groups[0].dim, 4);
  EXPECT_EQ(layout->groups[1].dim, 10);
  EXPECT_EQ(layout->budget_bytes, uint64_t{1} << 20);
}

TEST(CacheLayoutTest, TablesWhoseServersDecideWhichKeysHaveARowHaveStagingAlone) {
  JobTables tables = TwoGroups();
  tables.sparse[0].min_count = 2;
  tables.sparse[1].unused_steps = 100;
  const auto layout = LayOut(tables, 10, 1 << 20);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->groups.size(), 3u);
  EXPECT_THAT(layout->groups[0].tables, ElementsAre(0));
  EXPECT_EQ(layout->groups[0].capacity, 0);
  EXPECT_EQ(layout->groups[0].staging_rows, 20);
  EXPECT_EQ(layout->groups[1].capacity, 0);
  EXPECT_THAT(layout->groups[2].tables, ElementsAre(2));
  // All that is left is its.
  EXPECT_LE(StagingBytes(*layout) + layout->capacity_bytes(), uint64_t{1} << 20);
  EXPECT_GT(StagingBytes(*layout) + layout->capacity_bytes(), (uint64_t{1} << 20) - 100);
}

// Users on the device, items remote, places cached.
JobTables PlacedTables() {
  JobTables tables = TwoGroups();
  tables.placements = {TableSettings::DEVICE, TableSettings::REMOTE, TableSettings::CACHED};
  return tables;
}

TEST(CacheLayoutTest, TablesOfOtherPlacementsHaveGroupsOfTheirOwn) {
  // There are 20 rows of 32 bytes to be held, staging for 30 of them, and staging for 10 rows of 48
  // bytes; and one row more of each kind that is held.
  const auto least = LayOut(PlacedTables(), 10, 50 * 32 + 10 * 48 + 2 * 32);
  ASSERT_TRUE(least.ok()) << least.status();
  ASSERT_EQ(least->groups.size(), 3u);
  const CacheGroupLayout &users = least->groups[0], &items = least->groups[1],
                         &places = least->groups[2];
  EXPECT_THAT(users.tables, ElementsAre(0));
  EXPECT_TRUE(users.holds_rows && users.keeps_rows);
  EXPECT_EQ(users.staging_rows, 0);
  EXPECT_EQ(users.capacity, 21);
  EXPECT_THAT(items.tables, ElementsAre(1));
  EXPECT_FALSE(items.holds_rows || items.keeps_rows);
  EXPECT_EQ(items.staging_rows, 10);
  EXPECT_EQ(items.capacity, 0);
  EXPECT_THAT(places.tables, ElementsAre(2));
  EXPECT_TRUE(places.holds_rows && !places.keeps_rows);
  EXPECT_EQ(places.staging_rows, 30);
  EXPECT_EQ(places.capacity, 1);
  EXPECT_EQ(least->capacity_rows(), 22);
  EXPECT_EQ(least->kept_capacity_rows(), 21);
  EXPECT_EQ(LayOut(PlacedTables(), 10, 50 * 32 + 10 * 48 + 2 * 32 - 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  // What is left is for those that hold rows, by what a batch reads of them.
  const auto more = LayOut(PlacedTables(), 10, 50 * 32 + 10 * 48 + 2 * 32 + 5 * 320);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->groups[0].capacity, 21 + 20);
  EXPECT_EQ(more->groups[1].capacity, 0);
  EXPECT_EQ(more->groups[2].capacity, 1 + 30);
}

TEST(CacheLayoutTest, ARemoteTableNeedsNoRoomAsAnOwner) {
  JobTables tables = PlacedTables();
  // 3 times 20 and 30 rows of 16 bytes, once 10 of 40; one of 32 held of each.
  const uint64_t least_bytes = 3 * 50 * 16 + 10 * 40 + 2 * 32;
  const auto layout = LayOut(tables, 10, least_bytes, CacheUse::kShared);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->groups[0].capacity, 1);
  EXPECT_EQ(layout->groups[1].capacity, 0);
  EXPECT_EQ(layout->groups[2].capacity, 1);
  EXPECT_FALSE(LayOut(tables, 10, least_bytes - 1, CacheUse::kShared).ok());
  // A table of admission is remote in any case: both share a group.
  tables.placements[0] = TableSettings::REMOTE;
  tables.sparse[2].min_count = 2;
  const auto none = LayOut(tables, 10, 1 << 20, CacheUse::kShared);
  ASSERT_TRUE(none.ok()) << none.status();
  ASSERT_EQ(none->groups.size(), 2u);
  EXPECT_THAT(none->groups[0].tables, ElementsAre(0, 2));
  EXPECT_EQ(none->capacity_rows(), 0);
}

TEST(CacheLayoutTest, NoRoomToKeepNamesTableAndBytes) {
  JobTables tables = PlacedTables();
  const auto one = LayOut(tables, 10, 50 * 32 + 10 * 48 + 2 * 32);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(NoRoomToKeep(*one, 0, "users", 25),
            absl::InvalidArgumentError(
                "table 'users' has placement DEVICE, and its rows take 800 bytes so far; "
                "cache.budget is 2144 bytes, of which 672 are for them"));
  tables.placements[2] = TableSettings::DEVICE;
  const auto two = LayOut(tables, 10, 50 * 32 + 10 * 48 + 2 * 32);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(NoRoomToKeep(*two, 2, "places", 60),
            absl::InvalidArgumentError(
                "table 'places' has placement DEVICE, and its rows, with those of 1 more such "
                "table, take 1920 bytes so far; cache.budget is 2144 bytes, of which 1664 are for "
                "them"));
}

TEST(CacheLayoutTest, RowsTakeWholeMultiplesOf16BytesAndTheirStateWhereAskedTo) {
  struct Case {
    OptimizerKind kind;
    int dim, floats, stride;
  };
  for (const Case& c : {Case{OptimizerKind::kSgd, 4, 4, 4},
                        {OptimizerKind::kSgd, 1, 1, 4},
                        {OptimizerKind::kRowWiseAdagrad, 4, 5, 8},
                        {OptimizerKind::kAdagrad, 6, 12, 12},
                        {OptimizerKind::kAdam, 6, 18, 20}}) {
    JobTables tables;
    AddTable("t", c.dim, c.kind, &tables);
    AddFeature(0, 1, &tables);
    const auto layout = LayOut(tables, 10, 1 << 20, CacheUse::kOwned);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->groups[0].row_floats, c.floats);
    EXPECT_EQ(layout->groups[0].stride, c.stride);
    EXPECT_EQ(layout->groups[0].row_bytes(), 4 * c.stride);
  }
}

TEST(CacheLayoutTest, TheRowsOfABatchAndOneMoreAreTheLeast) {
  // 50 + 1 rows of 32 bytes, 10 + 1 of 48.
  const auto layout = LayOut(TwoGroups(), 10, 2160);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->groups[0].staging_rows, 50);
  EXPECT_EQ(layout->groups[1].staging_rows, 10);
  EXPECT_EQ(layout->groups[0].capacity, 1);
  EXPECT_EQ(layout->groups[1].capacity, 1);
  EXPECT_EQ(layout->capacity_rows(), 2);
  EXPECT_EQ(layout->capacity_bytes(), 80u);

  const absl::Status too_small = LayOut(TwoGroups(), 10, 2159).status();
  EXPECT_EQ(too_small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      too_small.message(),
      "cache.budget is 2159 bytes; at least 2160 are needed, for the rows of one batch and one "
      "more: 50 + 1 rows of 32 bytes for 2 tables like 'users', 10 + 1 rows of 48 bytes for 1 "
      "table like 'items'");
}

TEST(CacheLayoutTest, AnOwnerAmongOthersNeedsRoomForWhatItSends) {
  JobTables tables = TwoGroups();
  AddTable("rare", 4, OptimizerKind::kAdagrad, &tables);
  tables.sparse.back().min_count = 2;
  AddFeature(3, 2, &tables);
  const auto layout = LayOut(tables, 10, 4000, CacheUse::kShared);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->groups.size(), 3u);
  for (const CacheGroupLayout& group : layout->groups) EXPECT_EQ(group.staging_rows, 0);
  EXPECT_EQ(layout->groups[0].row_bytes(), 32);
  EXPECT_EQ(layout->groups[0].capacity, 1);
  EXPECT_EQ(layout->groups[1].capacity, 1);
  EXPECT_EQ(layout->groups[2].capacity, 0);
  EXPECT_EQ(LayOut(tables, 10, 3999, CacheUse::kShared).status(),
            absl::InvalidArgumentError(
                "cache.budget is 3999 bytes; at least 4000 are needed by each worker, for the rows "
                "of its batch, for those that it sends other workers, their gradients, and one "
                "more that it holds: 3 x 50 rows of 16 bytes and one of 32 for 2 tables like "
                "'users', 3 x 10 rows of 40 bytes and one of 48 for 1 table like 'items', 20 rows "
                "of 16 bytes for 1 table like 'rare'"));
}

TEST(CacheLayoutTest, WhatIsLeftIsSharedByWhatABatchReads) {
  // As many bytes again as a batch takes, and three times as many.
  const auto layout = LayOut(TwoGroups(), 10, 2160 + 2080);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->groups[0].capacity, 51);
  EXPECT_EQ(layout->groups[1].capacity, 11);
  EXPECT_EQ(layout->capacity_bytes(), 2160u);
  const auto larger = LayOut(TwoGroups(), 10, 2160 + 3 * 2080);
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_EQ(larger->groups[0].capacity, 151);
  EXPECT_EQ(larger->groups[1].capacity, 31);
  EXPECT_EQ(larger->capacity_rows(), 182);
}

TEST(CacheLayoutTest, ABudgetIsUsedUpAndNeverExceeded) {
  std::mt19937_64 random(TestSeed());
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    JobTables tables;
    for (int t = static_cast<int>(draw(1, 6)); t > 0; --t) {
      AddTable("t", static_cast<int>(draw(0, 1) == 0 ? draw(1, 8) : draw(1, 1024)),
               kRowOptimizerKinds[draw(0, std::size(kRowOptimizerKinds) - 1)], &tables);
      AddFeature(static_cast<int>(tables.sparse.size()) - 1, static_cast<int>(draw(1, 100)),
                 &tables);
    }
    const int64_t batch_samples = draw(1, 4096);
    // The message names the least budget.
    const std::string message(LayOut(tables, batch_samples, 1).status().message());
    const size_t number = message.find("at least ") + 9;
    const uint64_t least = std::stoull(message.substr(number));
    const uint64_t budget = least + draw(0, 1) * draw(0, 1 << 28);
    const auto layout = LayOut(tables, batch_samples, budget);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const uint64_t used = StagingBytes(*layout) + layout->capacity_bytes();
    ASSERT_LE(used, budget);
    uint64_t one_row_each = 0;
    for (const CacheGroupLayout& group : layout->groups) {
      ASSERT_GE(group.capacity, 1);
      one_row_each += group.row_bytes();
    }
    ASSERT_GE(used + one_row_each, budget);
  }
}

TEST(CacheLayoutTest, RowsAreNumberedWith29Bits) {
  JobTables tables;
  AddTable("t", 1, OptimizerKind::kSgd, &tables);
  AddFeature(0, 1, &tables);
  const auto layout = LayOut(tables, 10, uint64_t{1} << 40);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->groups[0].capacity, 1 << 29);
}

}  // namespace
}  // namespace thermocline
