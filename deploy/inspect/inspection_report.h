// What was found in a log, for people.
#ifndef THERMOCLINE_DEPLOY_INSPECT_INSPECTION_REPORT_H_
#define THERMOCLINE_DEPLOY_INSPECT_INSPECTION_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace thermocline {

// figures: of InspectLog, with suggestions. Lines of text, each ended.
std::string RenderInspection(const nlohmann::ordered_json& figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_INSPECTION_REPORT_H_
