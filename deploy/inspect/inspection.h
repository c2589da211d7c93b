// How the program thermocline-inspect, which has the parsers of all formats, is asked what is in a
// log, and its answer for people.
#ifndef THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_
#define THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/processes/reporting_program.h"

namespace thermocline {

struct InspectionRequest {
  std::vector<std::string> paths;  // Files, folders and patterns.
  std::string s3;                  // data.s3 of a job, as text.
  int64_t max_rows = 0;            // 0: all.
  std::string separator;           // "": to be guessed.
  std::string columns;             // Names, separated by commas; "": to be guessed.
  // Of texts, separated by commas, it is counted how often they occur in each column.
  std::string counted;
};

// `program`: as FindProgram returns it. Its last line has what it found as "figures"
// (docs/own-log.md).
ProgramCommand InspectionCommand(const std::string& program, const InspectionRequest& request);

// `figures`: with suggestions. Lines of text, each ended.
std::string RenderInspection(const nlohmann::ordered_json& figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_
