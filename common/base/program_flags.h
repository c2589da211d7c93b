// The command line of our programs other than the launcher: Abseil's flags, and our exit codes.
#ifndef THERMOCLINE_COMMON_BASE_PROGRAM_FLAGS_H_
#define THERMOCLINE_COMMON_BASE_PROGRAM_FLAGS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

// Sets the flags and returns the other arguments, the program's name first. `usage` is what --help
// says before all flags of our own sources. (By default Abseil shows only those defined in a file
// named like the program.) --help ends the program with code 0; an unknown flag, or a value that is
// none, ends the program: prints the reason, exit code 2. (Abseil's would be 1.)
std::vector<char*> ParseProgramFlags(absl::string_view usage, int argc, char** argv);

// What is wrong with the flags among `arguments`, or "". Sets those before it.
std::string CheckProgramFlags(const std::vector<std::string>& arguments);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROGRAM_FLAGS_H_
