#ifndef THERMOCLINE_DEPLOY_CLI_VERSION_H_
#define THERMOCLINE_DEPLOY_CLI_VERSION_H_

namespace thermocline {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_VERSION_H_
