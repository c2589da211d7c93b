// What is in the files of a log: one pass over all rows, in bounded memory.
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
  // Files, folders, patterns, here or of a store; or one folder of npy files.
  std::vector<std::string> paths;
  LayoutHints hints;
  int64_t max_rows = 0;  // 0: all.
  int threads = 1;       // That share the columns; the figures are the same for any number.
  Data::S3 s3;           // The store of objects, beside what the environment says of it.
  // Texts whose occurrences are counted in every column, however many others it has.
  std::vector<std::string> counted;
};

// share: of the reading that is done.
using OnInspected = std::function<void(int64_t rows, double share)>;

// The figures as `thermocline inspect --json` prints them (docs/own-log.md), without what the
// launcher adds. Errors: kNotFound, kPermissionDenied, kInvalidArgument (no log, or files of
// several kinds: says what is wrong with which), kDataLoss, kUnavailable, ObjectStore's; each names
// the file.
absl::StatusOr<nlohmann::ordered_json> InspectData(const InspectionOptions& options,
                                                   const OnInspected& on_inspected);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_DATA_INSPECTION_H_
