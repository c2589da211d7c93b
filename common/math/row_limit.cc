#include "common/math/row_limit.h"

#include <algorithm>

namespace thermocline {
namespace {

// A group of 2^k steps ended at least kGroupAge * 2^k steps ago.
constexpr uint64_t kGroupAge = 64;

uint64_t LastOfBlock(uint64_t changed, int shift) {
  return (((changed >> shift) + 1) << shift) - 1;
}

bool IsOldEnough(uint64_t changed, int shift, uint64_t now) {
  return LastOfBlock(changed, shift) + (kGroupAge << shift) <= now;
}

// Returns the end of the largest block of 2^k steps around `changed` that begins at a multiple of
// its length and is old enough. All steps of a block find the same block, and at a later `now` they
// find one that contains it.
uint64_t GroupByAge(uint64_t changed, uint64_t now) {
  if (changed + kGroupAge >= now) return changed;
  // The last step of a block is less than its length beyond `changed`.
  int shift = 63 - __builtin_clzll((now - changed) / kGroupAge);
  if (shift > 0 && !IsOldEnough(changed, shift, now)) --shift;
  return LastOfBlock(changed, shift);
}

// Returns the last of the changes whose rows are forgotten as unused together with `changed`.
uint64_t GroupByUse(const TableLayout& table, uint64_t changed) {
  const uint64_t period = table.forget_period();
  const uint64_t forgotten_after = (changed + table.unused_steps + period - 1) / period * period;
  return forgotten_after - table.unused_steps;
}

}  // namespace

uint32_t GroupOfChange(const TableLayout& table, uint32_t changed, Step now) {
  const uint64_t newest = static_cast<uint64_t>(now.value() + 1);
  uint64_t group = UINT32_MAX;
  if (table.max_rows > 0) group = GroupByAge(changed, newest);
  if (table.unused_steps > 0) group = std::min(group, GroupByUse(table, changed));
  return static_cast<uint32_t>(group);
}

uint32_t OldestKeptOf(const RowsByGroup& counts, uint64_t max_rows) {
  uint64_t rows = 0;
  for (auto group = counts.rbegin(); group != counts.rend(); ++group) {
    rows += group->second;
    if (rows > max_rows) return group->first + 1;
  }
  return 0;
}

}  // namespace thermocline
