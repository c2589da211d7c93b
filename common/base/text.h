// Reading what people write: sizes, and misspelt names.
#ifndef THERMOCLINE_COMMON_BASE_TEXT_H_
#define THERMOCLINE_COMMON_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// Parses a size in bytes, such as "512MiB": a whole number and one of B, KiB, MiB, GiB, TiB; below
// 2^63. Errors: kInvalidArgument (describes the syntax: "a size is a whole number and its unit,
// ...").
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

// Whether `text` is UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
bool IsUtf8(absl::string_view text);

// Returns " (did you mean 'batch_size'?)" with the candidate nearest to `name`, or "" where none is
// near. Ignores case, '-' and '_'.
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_TEXT_H_
