// Waiting for processes to come up: each writes its address to a port file once it serves.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_STARTUP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_STARTUP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/controller/run_directory.h"
#include "deploy/runner/supervisor.h"

namespace thermocline {

// Where the process called `name` ("server 0") has its file: ".../server-0.port" for "port".
std::string ProcessFile(const RunDirectory& directory, absl::string_view name,
                        absl::string_view extension);

// Removes it, where there is one. Errors: kUnavailable (names it).
absl::Status RemoveProcessFile(const RunDirectory& directory, absl::string_view name,
                               absl::string_view extension);

// The addresses of the processes with these names, in order, once all have come up; "" for one that
// has ended well before it said where it is.
// Errors: those of Supervisor::WaitUntil; kDeadlineExceeded names the first that did not come up,
// and its log.
absl::StatusOr<std::vector<std::string>> WaitForAddresses(const std::vector<std::string>& names,
                                                          const RunDirectory& directory,
                                                          absl::Duration timeout,
                                                          Supervisor* supervisor);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_STARTUP_H_
