// The plainest trainer that gives the bits which the system promises: one process, one thread, rows
// in a std::map, no servers, no plan, no wire. It shares with the product only the device's
// arithmetic, the optimizers' update of one row, and the readers.
#ifndef THERMOCLINE_TESTS_TRAINING_REFERENCE_TRAINER_H_
#define THERMOCLINE_TESTS_TRAINING_REFERENCE_TRAINER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "proto/job.pb.h"

namespace thermocline {

struct ReferenceResult {
  int64_t steps = 0;
  Digest digest;  // The digest of all rows, dense tables included.
};

// Trains `job`, which is resolved, as job.cluster.workers workers in sync mode do: every worker's
// gradients are computed from the same rows and summed in rank order, and a step updates each of
// its keys once.
absl::StatusOr<ReferenceResult> TrainReference(const Job& job);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_REFERENCE_TRAINER_H_
