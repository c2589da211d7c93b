// Suggestions for misspelt names: fields of a job file, flags, commands.
#ifndef THERMOCLINE_COMMON_JOB_DID_YOU_MEAN_H_
#define THERMOCLINE_COMMON_JOB_DID_YOU_MEAN_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

// " (did you mean 'batch_size'?)" with the candidate nearest to `name`, or "" where none is near.
// Case and the difference between '-' and '_' count little.
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_DID_YOU_MEAN_H_
