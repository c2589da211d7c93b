// The names and addresses of this machine.
#ifndef THERMOCLINE_DEPLOY_HTTP_HOST_NAMES_H_
#define THERMOCLINE_DEPLOY_HTTP_HOST_NAMES_H_

#include <string>
#include <vector>

namespace thermocline {

// Under which others may look for this machine: localhost, its names, and the addresses of its
// interfaces. Asks the system's resolver for its canonical name.
std::vector<std::string> NamesOfThisHost();

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_HOST_NAMES_H_
