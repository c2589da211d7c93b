// What may name a job. It travels in every request and stands in every error.
#ifndef THERMOCLINE_COMMON_BASE_JOB_ID_H_
#define THERMOCLINE_COMMON_BASE_JOB_ID_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace thermocline {

inline constexpr size_t kMaxJobIdBytes = 256;

// At most that many printable ASCII characters; none is the id of no job yet.
inline bool IsJobId(absl::string_view id) {
  return id.size() <= kMaxJobIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_JOB_ID_H_
