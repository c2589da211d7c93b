// Has a log read by the program thermocline-inspect, which has the parsers of all formats.
#ifndef THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_
#define THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/runner/signal_watch.h"

namespace thermocline {

struct InspectionRequest {
  std::vector<std::string> paths;  // Files, folders and patterns.
  int64_t max_rows = 0;            // 0: all.
  std::string separator;           // "": to be guessed.
  std::string columns;             // Names, separated by commas; "": to be guessed.
};

// Reads the log with the program at the path `program`. on_progress(rows, share of the reading that
// is done) is called now and then. Returns what the program found (docs/operations.md).
// Errors: kInvalidArgument (the files are no log that it can read: says why), kCancelled (a request
// to stop), kUnavailable (a disk or the program failed).
absl::StatusOr<nlohmann::ordered_json> InspectLog(
    const std::string& program, const InspectionRequest& request, SignalWatch* signals,
    const std::function<void(uint64_t rows, double share)>& on_progress);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_INSPECTION_H_
