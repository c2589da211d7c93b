#include "worker/rows/cache_rows.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

// The limits of a search for a victim (cache_rows.cc).
constexpr int32_t kRowsPerLine = 64;
constexpr int32_t kMaxLines = 64;

// Every entry here is of table 4.
constexpr int32_t kTable = 4;

// Takes a row for `entry`, with its victim; or expects that there is none.
struct Taken {
  int32_t row;
  int32_t victim;
};
Taken Take(CacheRows* rows, int32_t entry, uint8_t frequency) {
  RowOwner victim = {-2, -2};
  const int32_t row = rows->Take({kTable, entry}, frequency, &victim);
  EXPECT_TRUE(row == kNoRow || rows->owner(row).entry == entry);
  EXPECT_TRUE(row == kNoRow || victim.table == (victim.entry < 0 ? -1 : kTable));
  return {row, victim.entry};
}

// A row for each of the entries 100, 101, ...: row n is that of 100 + n.
CacheRows FullRows(int32_t capacity, uint8_t frequency) {
  CacheRows rows(capacity);
  for (int32_t row = 0; row < capacity; ++row) Take(&rows, 100 + row, frequency);
  return rows;
}

TEST(CacheRowsTest, RowsNeverHeldComeFirst) {
  CacheRows rows(3);
  EXPECT_EQ(rows.capacity(), 3);
  for (int32_t row = 0; row < 3; ++row) {
    EXPECT_EQ(rows.num_held(), row);
    const Taken taken = Take(&rows, 100 + row, 1);
    EXPECT_EQ(taken.row, row);
    EXPECT_EQ(taken.victim, -1);
    rows.Release(row);  // No row is evicted while there is room.
  }
  EXPECT_EQ(rows.num_held(), 3);
  EXPECT_EQ(Take(&rows, 103, 1).victim, 100);
  EXPECT_EQ(rows.num_held(), 3);
}

TEST(CacheRowsTest, NoneIsThereWhileAllAreNeeded) {
  // Also where the last line isn't full, and where there are no rows.
  for (const int32_t capacity : {0, 1, 63, 64, 65}) {
    CacheRows rows = FullRows(capacity, 1);
    EXPECT_EQ(Take(&rows, 7, 1).row, kNoRow);
    EXPECT_EQ(rows.num_held(), capacity);
    if (capacity == 0) continue;
    rows.Release(capacity - 1);
    rows.Need(capacity - 1);
    EXPECT_EQ(Take(&rows, 7, 1).row, kNoRow);
    rows.Release(capacity - 1);
    const Taken taken = Take(&rows, 7, 1);
    EXPECT_EQ(taken.row, capacity - 1);
    EXPECT_EQ(taken.victim, 100 + capacity - 1);
    EXPECT_EQ(Take(&rows, 8, 1).row, kNoRow);  // The row that was taken is needed.
  }
}

TEST(CacheRowsTest, TheLowestFrequencyOfALineGoes) {
  CacheRows rows(4);
  for (const uint8_t frequency : {3, 1, 0, 1}) Take(&rows, 100 + rows.num_held(), frequency);
  for (int32_t row = 0; row < 4; ++row) rows.Release(row);
  EXPECT_EQ(Take(&rows, 5, 1).victim, 102);
  EXPECT_EQ(Take(&rows, 6, 1).victim, 101);
  EXPECT_EQ(Take(&rows, 7, 1).victim, 103);
  EXPECT_EQ(Take(&rows, 8, 1).victim, 100);  // Popular, but the last that is not needed.
}

TEST(CacheRowsTest, EveryUseCounts) {
  CacheRows rows = FullRows(2, 1);
  for (int i = 0; i < 3; ++i) rows.Need(0);
  rows.Release(0);
  rows.Need(1);
  rows.Need(1);
  rows.Release(1);
  // 4 and 3: halved once, 2 and 1.
  EXPECT_EQ(Take(&rows, 7, 1).victim, 101);
}

TEST(CacheRowsTest, FrequenciesStopAtTheMost) {
  CacheRows rows(3);
  Take(&rows, 100, 1);
  Take(&rows, 101, CacheRows::kMaxFrequency / 2);
  Take(&rows, 102, CacheRows::kMaxFrequency + 1);
  for (int i = 0; i < CacheRows::kMaxFrequency; ++i) rows.Need(0);
  for (int32_t row = 0; row < 3; ++row) rows.Release(row);
  EXPECT_EQ(Take(&rows, 7, 1).victim, 101);
  EXPECT_EQ(Take(&rows, 8, 1).victim, 100);
  EXPECT_EQ(Take(&rows, 9, 1).victim, 102);
}

TEST(CacheRowsTest, RowsPassedLoseHalf) {
  CacheRows rows(2);
  Take(&rows, 100, 40);
  Take(&rows, 101, 12);
  rows.Release(0);
  rows.Release(1);
  // 40 becomes 5 while 12 becomes 1.
  EXPECT_EQ(Take(&rows, 102, 3).victim, 101);
  rows.Release(1);
  EXPECT_EQ(Take(&rows, 103, 1).victim, 102);
}

TEST(CacheRowsTest, RowsThatAreNeededLoseNothing) {
  CacheRows rows(2);
  Take(&rows, 100, 8);
  Take(&rows, 101, 127);
  rows.Release(1);
  EXPECT_EQ(Take(&rows, 102, 7).victim, 101);  // After six rounds.
  rows.Release(0);
  rows.Release(1);
  EXPECT_EQ(Take(&rows, 103, 1).victim, 102);
}

TEST(CacheRowsTest, TheClockGoesRoundLineByLine) {
  constexpr int32_t kLines = 3;
  CacheRows rows = FullRows(kLines * kRowsPerLine - 5, 2);
  for (int32_t row = 0; row < rows.capacity(); ++row) rows.Release(row);
  // One round in vain halves all; then each line is emptied before the next.
  for (int32_t row = 0; row < rows.capacity(); ++row) {
    ASSERT_EQ(Take(&rows, 1000 + row, 1).victim, 100 + row);
  }
  EXPECT_EQ(Take(&rows, 9, 1).row, kNoRow);
}

TEST(CacheRowsTest, WhereThereIsNoneTheClockStands) {
  CacheRows rows = FullRows(3 * kRowsPerLine, 1);
  rows.Release(0);
  rows.Need(0);
  EXPECT_EQ(Take(&rows, 7, 1).row, kNoRow);
  rows.Release(1);
  EXPECT_EQ(Take(&rows, 7, 1).row, 1);
  EXPECT_EQ(Take(&rows, 8, 1).row, kNoRow);
  for (int32_t row = 0; row < rows.capacity(); ++row) rows.Release(row);
  EXPECT_EQ(Take(&rows, 9, 1).row, 1);  // Row 0 was used twice.
}

TEST(CacheRowsTest, ASearchPassesEveryLineOnceARound) {
  // The most popular row, in the last of nine lines, is found after seven rounds: 63 lines.
  CacheRows rows = FullRows(9 * kRowsPerLine, CacheRows::kMaxFrequency);
  rows.Release(rows.capacity() - 1);
  EXPECT_EQ(Take(&rows, 7, 1).row, rows.capacity() - 1);
}

TEST(CacheRowsTest, ASearchEndsAndTheNextGoesOn) {
  constexpr int32_t kLines = 3 * kMaxLines;
  CacheRows rows = FullRows(kLines * kRowsPerLine, 1);
  const int32_t last = rows.capacity() - 1;
  rows.Release(last);
  EXPECT_EQ(Take(&rows, 7, 1).row, kNoRow);
  EXPECT_EQ(Take(&rows, 7, 1).row, kNoRow);
  EXPECT_EQ(Take(&rows, 7, 1).victim, 100 + last);
}

TEST(CacheRowsTest, RandomUseGivesUpNoRowThatIsNeeded) {
  std::mt19937_64 random(TestSeed());
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int64_t victims = 0, in_vain = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE("trace " + std::to_string(i));
    // Few enough lines that every search finds what there is.
    const int32_t capacity = draw(1, i % 2 == 0 ? 8 : 300);
    CacheRows rows(capacity);
    std::vector<int32_t> owners;
    std::vector<bool> needed;
    for (int32_t entry = 0; entry < 3000; ++entry) {
      const Taken taken = Take(&rows, entry, static_cast<uint8_t>(draw(0, 127)));
      if (static_cast<int32_t>(owners.size()) < capacity) {
        ASSERT_EQ(taken.row, static_cast<int32_t>(owners.size()));
        ASSERT_EQ(taken.victim, -1);
        owners.push_back(entry);
        needed.push_back(true);
      } else if (taken.row == kNoRow) {
        ASSERT_EQ(std::count(needed.begin(), needed.end(), false), 0);
        ++in_vain;
      } else {
        ASSERT_FALSE(needed[taken.row]);
        ASSERT_EQ(taken.victim, owners[taken.row]);
        owners[taken.row] = entry;
        needed[taken.row] = true;
        ++victims;
      }
      ASSERT_EQ(rows.num_held(), static_cast<int32_t>(owners.size()));
      for (int uses = draw(0, 4); uses > 0; --uses) {
        const int32_t row = draw(0, static_cast<int32_t>(owners.size()) - 1);
        if (needed[row] && draw(0, 1) == 0) {
          rows.Release(row);
          needed[row] = false;
        } else {
          rows.Need(row);
          needed[row] = true;
        }
      }
    }
    for (int32_t row = 0; row < rows.num_held(); ++row) {
      ASSERT_EQ(rows.owner(row).entry, owners[row]);
    }
  }
  EXPECT_GT(victims, 10000);
  EXPECT_GT(in_vain, 10000);
}

}  // namespace
}  // namespace thermocline
