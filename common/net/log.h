// Lines of a process's log, on stderr: "2024-06-11T09:28:20.123Z text".
//
// What is visible from outside is a statistic, not a log line: log starts, ends and errors.
#ifndef THERMOCLINE_COMMON_NET_LOG_H_
#define THERMOCLINE_COMMON_NET_LOG_H_

#include "absl/strings/string_view.h"

namespace thermocline {

// Thread-safe; a line is written whole.
void LogLine(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_LOG_H_
