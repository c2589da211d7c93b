#include "common/base/byte_size.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace thermocline {
namespace {

constexpr std::pair<absl::string_view, int> kUnits[] = {
    {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  for (const auto& [unit, shift] : kUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    uint64_t value = 0;
    const bool digits = number.find_first_not_of("0123456789") == absl::string_view::npos;
    if (!digits || !absl::SimpleAtoi(number, &value)) break;
    if (value >> (63 - shift) != 0) {
      return absl::InvalidArgumentError("a size is less than 8192 PiB");
    }
    return value << shift;
  }
  return absl::InvalidArgumentError(
      "a size is a whole number and its unit, B, KiB, MiB, GiB or TiB, such as \"512MiB\"");
}

}  // namespace thermocline
