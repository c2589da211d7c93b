// Sizes as people write them: "512MiB".
#ifndef THERMOCLINE_COMMON_BASE_BYTE_SIZE_H_
#define THERMOCLINE_COMMON_BASE_BYTE_SIZE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// A whole number and one of B, KiB, MiB, GiB, TiB; below 2^63.
// Errors: kInvalidArgument (what a size looks like: "a size is a whole number and its unit, ...").
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_BYTE_SIZE_H_
