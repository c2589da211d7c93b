// The forms in which logs write times.
#ifndef THERMOCLINE_WORKER_INSPECT_TIME_FORMS_H_
#define THERMOCLINE_WORKER_INSPECT_TIME_FORMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

struct TimeForm {
  const char* name;  // "YYYY-MM-DD hh:mm:ss", "seconds since 1970"
  // Returns seconds since 1970, all taken as UTC; nullopt if `text` has another form.
  std::optional<int64_t> (*parse)(absl::string_view text);
  int hour_start;  // Where the two digits of the hour begin; -1: the text doesn't have them.
  // Whether any integer of the right size has this form, so that the column's name or its many
  // values have to speak for it, too.
  bool is_number;
};

// Returns the forms that name a day before those that count seconds.
std::vector<const TimeForm*> AllTimeForms();

// Returns a text like "2014-10-21 07:00:00".
std::string FormatTime(int64_t seconds);

// Whether a column of this name is likely to be a time: "timestamp", "event_time", "hour", "date".
bool IsNameOfTime(absl::string_view column);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_TIME_FORMS_H_
