// A pack: the training rows of a job as hot batches, which read hot rows only, and cold batches.
// thermocline-pack makes it once, and it stays in calibration.directory for later runs
// (docs/formats.md, "Packs"). Its batches are global ones, so a pack serves any number of workers.
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

// The batches and rows of one pass.
struct PackCounts {
  int64_t batches[2] = {0, 0};  // [0] cold, [1] hot
  int64_t rows[2] = {0, 0};
};

// Batches of one kind that are trained one after the other.
struct PackStretch {
  bool is_hot = false;
  int64_t first_batch = 0;  // The number of the first one among the pass's batches of this kind.
  int64_t num_batches = 0;
  // BatchReader counts from these.
  Step first_step{0};  // The step of the first batch.
  uint32_t pass = 0;
  bool begins_pass = false;     // Whether the first batch is the first of the pass.
  double progress_before = 0;   // Batch::progress before the first batch,
  double progress_through = 1;  // and with the last one.
};

// Immutable and thread-safe.
class Pack {
 public:
  // Opens the pack of `job`, which is resolved, in calibration.directory. Errors: kNotFound (there
  // is none), kFailedPrecondition (it was made for another job, or of other data: says what
  // differs), kDataLoss (it is damaged: names the file and the place).
  static absl::StatusOr<std::shared_ptr<const Pack>> Open(const Job& job);
  virtual ~Pack() = default;

  virtual const HotSet& hot_set() const = 0;
  // The pack of a cache whose policy is STATIC has only the hot set: its counts are zero.
  virtual const PackCounts& counts() const = 0;
  // The figures of calibration when the pack was made, as JSON (thermocline-pack's last line).
  virtual const std::string& report() const = 0;
  virtual uint64_t file_bytes() const = 0;
  // 32 hexadecimal digits, which are equal for packs with the same hot rows and batches.
  virtual std::string digest() const = 0;

  // Opens a reader of this worker's slices of the stretch's batches. It may outlive the pack. The
  // error of a damaged batch (kDataLoss) comes in its place.
  //   before: how much comes before the stretch; the reader's skipped() adds to it
  virtual std::unique_ptr<BatchReader> OpenReader(const Job& job, const PackStretch& stretch,
                                                  const BatchReader::Skipped& before,
                                                  WorkerRank rank, uint32_t num_workers) const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_H_
