// What a job's script keeps in checkpoints (Job.worker), as rows of the table
// JobTables::script_state, so that servers and checkpoints hold it as they hold all other rows.
//
// The bytes are a header and what the script gave. Row k has the bytes [768 k, 768 (k + 1)), three
// in each of its 256 floats, which hold whole numbers below 2^24 exactly; behind the end are zeros.
//
//   header  8 bytes "tcstate1", 8 bytes: how many the script gave, 4 bytes: their CRC-32C; all
//           little endian
#ifndef THERMOCLINE_COMMON_MATH_SCRIPT_STATE_ROWS_H_
#define THERMOCLINE_COMMON_MATH_SCRIPT_STATE_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace thermocline {

// The rows of a state: [rows, 256] floats.
std::vector<float> RowsOfState(absl::string_view state);
// The rows that the state takes whose first row this is; 0: no state was ever kept. Errors:
// kDataLoss (the row is not the first of a state).
absl::StatusOr<int64_t> NumRowsOfState(absl::Span<const float> first_row);
// The state in rows, by key from 0 on; there may be more of them. Errors: kDataLoss (they do not
// hold a whole state).
absl::StatusOr<std::string> StateOfRows(absl::Span<const float> rows);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_SCRIPT_STATE_ROWS_H_
