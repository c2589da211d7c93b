// Calls the program thermocline-inspect, which has the parsers of all formats, and renders its
// answer.
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
  // Texts, separated by commas, whose occurrences are counted in each column.
  std::string counted;
};

// Returns the command that inspects. The program's last line has "figures" (docs/own-log.md).
//   program: as FindProgram returns it
ProgramCommand InspectionCommand(const std::string& program, const InspectionRequest& request);

// Returns lines of text about `figures`, which have suggestions. Each line ends with "\n".
std::string RenderInspection(const nlohmann::ordered_json& figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_
