// Where the programs are that the launcher starts.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_PROGRAMS_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_PROGRAMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// The path of `name` ("thermocline-server"): in `bin_dir` if that is given, else beside this
// program, else where the build leaves it. Errors: kNotFound (says where it was looked for).
absl::StatusOr<std::string> FindProgram(absl::string_view name, const std::string& bin_dir);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_PROGRAMS_H_
