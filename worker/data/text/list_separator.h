// Guesses from some texts of a column whether they are lists, and what divides their values.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_LIST_SEPARATOR_H_
#define THERMOCLINE_WORKER_DATA_TEXT_LIST_SEPARATOR_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace thermocline {

// Returns the character that divides all `texts` into values, and enough of them into several; 0:
// there is none. Empty texts say nothing.
//   of_columns: the character that divides a line into columns, which is no candidate
char GuessListSeparator(absl::Span<const absl::string_view> texts, char of_columns);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_LIST_SEPARATOR_H_
