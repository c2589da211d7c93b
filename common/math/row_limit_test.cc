#include "common/math/row_limit.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TableLayout Limited(uint64_t max_rows, uint64_t unused_steps = 0) {
  TableLayout table;
  table.max_rows = max_rows;
  table.unused_steps = unused_steps;
  return table;
}

TEST(RowLimitTest, CountsAfterStepsThatFollowFromTheJobAlone) {
  EXPECT_EQ(Limited(1).count_period(), 4u);
  EXPECT_EQ(Limited(100'000).count_period(), 24u);
  EXPECT_EQ(Limited(uint64_t{1} << 40).count_period(), 1024u);
  EXPECT_FALSE(Limited(0).CountsAfter(Step(3)));
  EXPECT_FALSE(Limited(1).CountsAfter(kNoStep));
  for (const int64_t step : {0, 1, 2, 4, 5, 6}) EXPECT_FALSE(Limited(1).CountsAfter(Step(step)));
  for (const int64_t step : {3, 7, 11}) EXPECT_TRUE(Limited(1).CountsAfter(Step(step)));
}

TEST(RowLimitTest, KeepsWholeGroupsUpToTheLimit) {
  const RowsByGroup counts = {{3, 5}, {7, 1}, {9, 4}};
  EXPECT_EQ(OldestKeptOf(counts, 10), 0u);
  EXPECT_EQ(OldestKeptOf(counts, 9), 4u);
  EXPECT_EQ(OldestKeptOf(counts, 5), 4u);
  EXPECT_EQ(OldestKeptOf(counts, 4), 8u);
  EXPECT_EQ(OldestKeptOf(counts, 3), 10u);  // The newest alone are too many.
  EXPECT_EQ(OldestKeptOf({}, 1), 0u);
}

// The group of each change at `now`, for changes up to it: [now + 2]
std::vector<uint32_t> GroupsAt(const TableLayout& table, int64_t now) {
  std::vector<uint32_t> groups;
  for (uint32_t changed = 0; changed <= now + 1; ++changed) {
    groups.push_back(GroupOfChange(table, changed, Step(now)));
  }
  return groups;
}

TEST(RowLimitTest, GroupsAreFewAndShortForTheirAge) {
  const int64_t now = 1'000'000;
  const std::vector<uint32_t> groups = GroupsAt(Limited(1), now);
  size_t num_groups = 0;
  for (uint32_t begin = 0; begin < groups.size(); ++num_groups) {
    const uint32_t last = groups[begin];
    ASSERT_GE(last, begin);
    ASSERT_LE(last, now + 1);
    for (uint32_t changed = begin; changed <= last; ++changed) ASSERT_EQ(groups[changed], last);
    const uint32_t length = last + 1 - begin;
    if (length > 1) {
      ASSERT_LE(length * 64, now + 1 - last);
    }
    begin = last + 1;
  }
  EXPECT_LT(num_groups, 1100u);
  for (uint32_t age = 0; age < 64; ++age) EXPECT_EQ(groups[now + 1 - age], now + 1 - age);
}

// What a server counted in groups earlier can be counted in the groups of later, and what is
// forgotten as unused is whole groups.
TEST(RowLimitTest, GroupsOnlyJoin) {
  for (const uint64_t unused_steps : {0, 5, 100, 1000}) {
    const TableLayout table = Limited(1, unused_steps);
    std::vector<uint32_t> before = GroupsAt(table, 0);
    for (int64_t now = 1; now < 3000; now += 1 + now / 7) {
      const std::vector<uint32_t> groups = GroupsAt(table, now);
      for (uint32_t changed = 0; changed < before.size(); ++changed) {
        ASSERT_EQ(groups[before[changed]], groups[changed]) << changed << " at " << now;
        const uint32_t kept = table.OldestKept(Step(now));
        ASSERT_EQ(groups[changed] < kept, changed < kept) << changed << " at " << now;
      }
      before = groups;
    }
  }
}

// Against a plain list of last changes, for groups of one step: the rows that stay are the newest
// that fit.
TEST(RowLimitTest, KeepsTheRowsChangedLast) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t max_rows = 1 + random() % 50;
    std::vector<uint32_t> rows(random() % 100);
    for (uint32_t& changed : rows) changed = 1 + static_cast<uint32_t>(random() % 60);
    RowsByGroup counts;
    for (const uint32_t changed : rows) {
      ++counts[GroupOfChange(Limited(max_rows), changed, Step(60))];
    }
    const uint32_t oldest_kept = OldestKeptOf(counts, max_rows);
    const auto kept_from = [&](uint32_t oldest) {
      return static_cast<uint64_t>(
          std::count_if(rows.begin(), rows.end(), [&](uint32_t c) { return c >= oldest; }));
    };
    EXPECT_LE(kept_from(oldest_kept), max_rows);
    if (oldest_kept > 0) {
      EXPECT_GT(kept_from(oldest_kept - 1), max_rows);
    }
  }
}

}  // namespace
}  // namespace thermocline
