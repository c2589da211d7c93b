// Finds out what is in the files of a log, in one pass over all rows and in bounded memory.
#ifndef THERMOCLINE_WORKER_INSPECT_DATA_INSPECTION_H_
#define THERMOCLINE_WORKER_INSPECT_DATA_INSPECTION_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/inspect/text_layout.h"

namespace thermocline {

struct InspectionOptions {
  // Files, folders and patterns, of this host or of a store; or one folder of npy files.
  std::vector<std::string> paths;
  LayoutHints hints;
  int64_t max_rows = 0;  // 0: all rows.
  int threads = 1;       // They share the columns; the figures are the same for any number.
  Data::S3 s3;           // How to reach the store; the environment has the rest (Data.s3).
  // The occurrences of these texts are counted in every column, however many other texts it has.
  std::vector<std::string> counted;
};

// Called while it reads.
//   share: how much of the reading is done, in [0, 1]
using OnInspected = std::function<void(int64_t rows, double share)>;

// Returns the figures that `thermocline inspect --json` prints (docs/own-log.md), without those
// that the launcher adds. Errors: kNotFound, kPermissionDenied, kInvalidArgument (a file is no log,
// or files are of several kinds: says which, and what is wrong), kDataLoss, kUnavailable,
// ObjectStore's; each names the file.
absl::StatusOr<nlohmann::ordered_json> InspectData(const InspectionOptions& options,
                                                   const OnInspected& on_inspected);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_DATA_INSPECTION_H_
