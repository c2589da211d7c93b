// How a table keeps its max_rows. Every few steps each server counts its rows by the step of their
// last change. The counts of all servers, added up, say which steps' rows are too many, and every
// server forgets those. So the rows that stay do not depend on the number of servers.
//
// Steps are counted in groups, so that a count stays small however long a job trains. A recent step
// is a group of its own; the longer ago steps are, the more of them share a group. A group is at
// most 1/64 as long as the time since its last step.
#ifndef THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_
#define THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_

#include <cstdint>
#include <map>

#include "common/base/ids.h"
#include "common/math/table_spec.h"

namespace thermocline {

// Returns the last step, plus 1, of the group of a row's last change.
//   changed: the step of the row's last change, plus 1 (RowMeta::changed)
//   now: the last step applied
// Groups depend on the table and on `now` alone. As `now` rises some join, and none is divided.
// Rows that the table forgets as unused (unused_steps) are whole groups.
uint32_t GroupOfChange(const TableLayout& table, uint32_t changed, Step now);

// Number of rows by group.
using RowsByGroup = std::map<uint32_t, uint64_t>;

// Returns the least `oldest_kept` for which at most `max_rows` rows have RowMeta::changed >=
// oldest_kept; the others are to be forgotten. 0: all may stay. Rows of a group go or stay
// together.
uint32_t OldestKeptOf(const RowsByGroup& counts, uint64_t max_rows);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_
