// The work of thermocline-pack: counts lookups, chooses the hot rows, and writes the pack of a job.
#ifndef THERMOCLINE_WORKER_FAE_PACKING_H_
#define THERMOCLINE_WORKER_FAE_PACKING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/disk/disk.h"
#include "proto/job.pb.h"

namespace thermocline {

// How far a reading of rows is: of a sample, or of all.
struct PackingProgress {
  absl::string_view activity;  // "counting lookups", "packing", "classifying samples"
  int64_t rows = 0;            // Read so far.
  double fraction = 0;         // Of its rows, as far as the bytes read tell: in (0, 1].
  absl::Duration elapsed;      // Since it began.
};

struct PackingOptions {
  Disk* disk = nullptr;  // Where packs are. REQUIRED
  int threads = 1;       // The pack is the same for any number.
  std::function<void(const PackingProgress& progress)> on_progress;
  std::function<void(absl::string_view text)> on_warning;
  // Set from a signal handler: the work ends soon with kCancelled.
  std::atomic<bool>* cancelled = nullptr;
  // Set while there is a file that such an end would remove.
  std::atomic<bool>* has_file = nullptr;
};

// Finds the pack of `job` (resolved) in calibration.directory, or makes it. Returns what
// calibration found and what is in the pack, as thermocline-pack reports it (docs/operations.md).
// Errors: kInvalidArgument (a field of the job; the budget holds no hot batch; malformed rows),
// kAborted (the data changed meanwhile), kCancelled, kResourceExhausted (the disk is full), those
// of Dataset::Open() and of Disk. No file of this call is left then.
absl::StatusOr<nlohmann::ordered_json> FindOrMakePack(const Job& job,
                                                      const PackingOptions& options);

// Makes no pack: tells for every budget and every share of the rows as the sample what would be
// hot, and how many samples of all rows.
struct CalibrationGrid {
  std::vector<int64_t> budget_bytes;
  std::vector<double> sample_shares;  // each in (0, 1]
};
absl::StatusOr<nlohmann::ordered_json> CalibrateOnly(const Job& job, const CalibrationGrid& grid,
                                                     const PackingOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACKING_H_
