// The training rows of a job as hot batches, whose every lookup reads a hot row, and cold ones:
// made once by thermocline-pack, kept in calibration.directory for later runs (docs/formats.md,
// "Packs"). A batch is a global one, so a pack serves any number of workers.
#ifndef THERMOCLINE_WORKER_FAE_PACK_H_
#define THERMOCLINE_WORKER_FAE_PACK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/data/batch_reader.h"
#include "worker/plan/hot_set.h"

namespace thermocline {

class Job;  // proto/job.proto

// Of one pass.
struct PackCounts {
  int64_t batches[2] = {0, 0};  // [0] cold, [1] hot
  int64_t rows[2] = {0, 0};
};

// Batches of one kind that are trained one after the other.
struct PackStretch {
  bool is_hot = false;
  int64_t first_batch = 0;  // of the pass's batches of this kind
  int64_t num_batches = 0;
  // What BatchReader counts from: Batch::step of the first batch, and what lies before it.
  Step first_step{0};
  uint32_t pass = 0;
  bool begins_pass = false;     // its first batch is the first of the pass
  double progress_before = 0;   // Batch::progress goes from here
  double progress_through = 1;  // to here
};

// Immutable and thread-safe.
class Pack {
 public:
  // The pack of `job` (resolved) in calibration.directory. Errors: kNotFound (there is none),
  // kFailedPrecondition (it was made for another job, or of other data: says what differs),
  // kDataLoss (damaged: names the file and the place).
  static absl::StatusOr<std::shared_ptr<const Pack>> Open(const Job& job);
  virtual ~Pack() = default;

  virtual const HotSet& hot_set() const = 0;
  // All zero in the pack of a cache whose policy is STATIC: it has the hot set alone.
  virtual const PackCounts& counts() const = 0;
  // What calibration found when the pack was made, as JSON (thermocline-pack's last line).
  virtual const std::string& report() const = 0;
  virtual uint64_t file_bytes() const = 0;
  // Equal for packs of the same hot rows and batches: 32 hexadecimal digits.
  virtual std::string digest() const = 0;

  // Hands out this worker's slices of the stretch's batches. What skipped() says of steps, samples
  // and global samples before the stretch is the caller's `before`. The reader may outlive the
  // pack. An error of a damaged batch (kDataLoss) surfaces in its place.
  virtual std::unique_ptr<BatchReader> OpenReader(const Job& job, const PackStretch& stretch,
                                                  const BatchReader::Skipped& before,
                                                  WorkerRank rank, uint32_t num_workers) const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_H_
