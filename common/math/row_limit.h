// How a table keeps its max_rows. After some steps every server counts its rows by the step of
// their last change; the counts of all servers, added up, say which steps' rows are too many, and
// those are forgotten, on every server alike. So the rows that stay do not depend on the number of
// servers.
//
// Steps are counted in groups, so that a count stays small however long a job trains: by
// themselves where they are recent, and together with their neighbours the longer ago they are. A
// group is at most 1/64 as long as the time since its last step.
#ifndef THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_
#define THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_

#include <cstdint>
#include <map>

#include "common/base/ids.h"
#include "common/math/table_spec.h"

namespace thermocline {

// Of rows that were changed last in the same group of steps: that group's last step, plus 1, as
// RowMeta::changed has it. Groups depend on the table and the last step applied, `now`, alone; as
// `now` rises some join, and none is divided. What the table forgets as unused is whole groups.
uint32_t GroupOfChange(const TableLayout& table, uint32_t changed, Step now);

// Number of rows by group.
using RowsByGroup = std::map<uint32_t, uint64_t>;

// The least oldest_kept (RowMeta::changed of what is not forgotten, at least) that leaves at most
// `max_rows`. 0: all may stay. Rows of a group go or stay together.
uint32_t OldestKeptOf(const RowsByGroup& counts, uint64_t max_rows);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_ROW_LIMIT_H_
