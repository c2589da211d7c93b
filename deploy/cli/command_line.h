// The command line of `thermocline`.
#ifndef THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_
#define THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "common/version/version.h"

namespace thermocline {

inline constexpr char kVersion[] = THERMOCLINE_VERSION;

// Parses the arguments (without the program's name) and runs the command that they name. Prints
// help pages to standard output and errors to standard error. Returns the exit code.
int RunCommandLine(const std::vector<std::string>& arguments);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_
