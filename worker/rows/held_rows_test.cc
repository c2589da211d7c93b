#include "worker/rows/held_rows.h"

#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

HeldRows MakeRows(int32_t capacity) {
  HeldRows held(capacity);
  for (int32_t row = 0; row < capacity; ++row) {
    held.Hold(row, /*table=*/row % 2, /*key=*/100 + row);
  }
  return held;
}

std::vector<int32_t> TakeAll(HeldRows* held) {
  std::vector<int32_t> rows;
  while (held->num_unwritten() > 0) rows.push_back(held->TakeOldest().row);
  return rows;
}

TEST(HeldRowsTest, KnowsWhoseARowIs) {
  HeldRows held = MakeRows(3);
  EXPECT_EQ(held.table(1), 1);
  EXPECT_EQ(held.key(1), 101u);
  held.Hold(1, 0, 7);
  EXPECT_EQ(held.table(1), 0);
  EXPECT_EQ(held.key(1), 7u);
  EXPECT_EQ(held.key(2), 102u);
}

TEST(HeldRowsTest, CountsRowsAndLookupsUntilTheyAreTaken) {
  HeldRows held = MakeRows(4);
  EXPECT_EQ(held.num_unwritten(), 0);
  EXPECT_EQ(held.TakeUnwritten(2), 0u);
  held.AddUpdate(2, 3);
  held.AddUpdate(2, 4);
  held.AddUpdate(0, 1);
  EXPECT_EQ(held.num_unwritten(), 2);
  EXPECT_EQ(held.TakeUnwritten(2), 7u);
  EXPECT_EQ(held.num_unwritten(), 1);
  EXPECT_EQ(held.TakeUnwritten(2), 0u);
  EXPECT_EQ(held.num_unwritten(), 1);
  EXPECT_EQ(held.TakeOldest().lookups, 1u);
  EXPECT_EQ(held.num_unwritten(), 0);
}

TEST(HeldRowsTest, TheSumOfLookupsStopsAtTheMostThereCanBe) {
  HeldRows held = MakeRows(1);
  held.AddUpdate(0, UINT32_MAX - 1);
  held.AddUpdate(0, 5);
  EXPECT_EQ(held.num_unwritten(), 1);
  EXPECT_EQ(held.TakeUnwritten(0), UINT32_MAX);
}

TEST(HeldRowsTest, TakesThoseThatWaitLongestFirst) {
  HeldRows held = MakeRows(4);
  for (const int32_t row : {2, 0, 3}) held.AddUpdate(row, 1);
  EXPECT_EQ(held.TakeOldest().row, 2);
  for (const int32_t row : {1, 2}) held.AddUpdate(row, 1);
  EXPECT_EQ(TakeAll(&held), (std::vector<int32_t>{0, 3, 1, 2}));
}

TEST(HeldRowsTest, WhatIsUpdatedAgainGoesBehindTheOthersOnce) {
  HeldRows held = MakeRows(4);
  for (const int32_t row : {0, 1, 2}) held.AddUpdate(row, 1);
  held.AddUpdate(0, 1);
  EXPECT_EQ(held.TakeOldest().row, 1);
  held.AddUpdate(3, 1);
  EXPECT_EQ(TakeAll(&held), (std::vector<int32_t>{2, 0, 3}));
  // Where all are, it is the order in which they came.
  for (int round = 0; round < 2; ++round) {
    for (const int32_t row : {3, 1}) held.AddUpdate(row, 1);
  }
  EXPECT_EQ(TakeAll(&held), (std::vector<int32_t>{3, 1}));
}

// Evicted, say; the row's next key is another matter.
TEST(HeldRowsTest, ARowWrittenWhileItWaitsIsTakenWhenItIsUnwrittenAgain) {
  HeldRows held = MakeRows(3);
  for (const int32_t row : {0, 1}) held.AddUpdate(row, 1);
  EXPECT_EQ(held.TakeUnwritten(0), 1u);
  held.Hold(0, 0, 50);
  EXPECT_EQ(held.num_unwritten(), 1);
  held.AddUpdate(2, 1);
  held.AddUpdate(0, 5);
  EXPECT_EQ(held.TakeOldest().row, 1);
  EXPECT_EQ(held.TakeOldest().row, 2);
  const HeldRows::Unwritten last = held.TakeOldest();
  EXPECT_EQ(last.row, 0);
  EXPECT_EQ(last.lookups, 5u);
  EXPECT_EQ(held.num_unwritten(), 0);
  held.AddUpdate(1, 2);
  EXPECT_EQ(TakeAll(&held), (std::vector<int32_t>{1}));
}

}  // namespace
}  // namespace thermocline
