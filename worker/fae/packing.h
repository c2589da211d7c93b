// The work of thermocline-pack: counts lookups, chooses the hot rows, and writes the pack of a job.
#ifndef THERMOCLINE_WORKER_FAE_PACKING_H_
#define THERMOCLINE_WORKER_FAE_PACKING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/disk/disk.h"
#include "proto/job.pb.h"

namespace thermocline {

// How far one reading of the training rows, or of a sample of them, has got.
struct PackingProgress {
  absl::string_view activity;  // "counting lookups", "packing", "classifying samples"
  int64_t rows = 0;            // Rows read so far.
  double fraction = 0;         // The share of the reading, by the bytes read, in (0, 1].
  absl::Duration elapsed;      // The time since it began.
};

struct PackingOptions {
  Disk* disk = nullptr;  // The disk of the packs. Must be set.
  int threads = 1;       // The pack is the same for any number.
  std::function<void(const PackingProgress& progress)> on_progress;
  std::function<void(absl::string_view text)> on_warning;
  // A signal handler may set it: then the work ends soon with kCancelled.
  std::atomic<bool>* cancelled = nullptr;
  // True while there is an unfinished file, which would be removed then.
  std::atomic<bool>* has_file = nullptr;
};

// Finds the pack of `job`, which is resolved, in calibration.directory, or makes it. Returns the
// figures of calibration and of the pack, as thermocline-pack reports them (docs/operations.md).
// After an error no file of this call is left. Errors: kInvalidArgument (a field of the job; the
// budget has no room for a hot batch; malformed rows), kAborted (the data changed meanwhile),
// kCancelled, kResourceExhausted (the disk is full), Dataset::Open's, Disk's.
absl::StatusOr<nlohmann::ordered_json> FindOrMakePack(const Job& job,
                                                      const PackingOptions& options);

// The budgets and sample shares that CalibrateOnly tries, each with each.
struct CalibrationGrid {
  std::vector<int64_t> budget_bytes;
  std::vector<double> sample_shares;  // Each is in (0, 1].
};
// Makes no pack. Returns, for every budget and sample share, which rows would be hot, and how many
// of all samples.
absl::StatusOr<nlohmann::ordered_json> CalibrateOnly(const Job& job, const CalibrationGrid& grid,
                                                     const PackingOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACKING_H_
