// Whether the first row of a text file names the columns of the others.
#ifndef THERMOCLINE_WORKER_INSPECT_HEADER_GUESS_H_
#define THERMOCLINE_WORKER_INSPECT_HEADER_GUESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// Whether the first of `rows` is no row like the others: where they have numbers or times, it has
// text. What names are made of does not matter, so that a header which `train` refuses is one here,
// too. `columns`: that most rows have; others count for nothing. Errors: kInvalidArgument (the row
// is as much the one as the other: says which columns speak for what, and what to do).
absl::StatusOr<bool> HasHeader(const std::string& path,
                               const std::vector<std::vector<std::string>>& rows, size_t columns);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_HEADER_GUESS_H_
