// What --help of our programs shows.
#ifndef THERMOCLINE_COMMON_FLAGS_HELP_H_
#define THERMOCLINE_COMMON_FLAGS_HELP_H_

namespace thermocline {

// All flags of our own sources. (By default Abseil shows only those defined in a file named like
// the program.) Call it before absl::ParseCommandLine.
void ShowOurFlagsInHelp();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_FLAGS_HELP_H_
