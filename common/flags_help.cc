#include "common/flags_help.h"

#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace thermocline {

void ShowOurFlagsInHelp() {
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) {
    return !absl::StrContains(file, "absl/flags/");
  };
  absl::SetFlagsUsageConfig(config);
}

}  // namespace thermocline
