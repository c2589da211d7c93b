// thermocline calibrate's report.
#ifndef THERMOCLINE_DEPLOY_CLI_CALIBRATE_COMMAND_H_
#define THERMOCLINE_DEPLOY_CLI_CALIBRATE_COMMAND_H_

#include <nlohmann/json.hpp>
#include <string>

namespace thermocline {

// A line for each budget and share of the rows, from thermocline-pack's "calibrations"; what kept
// one from being made; and the tables of the last.
std::string RenderCalibrations(const nlohmann::ordered_json& calibrations);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CALIBRATE_COMMAND_H_
