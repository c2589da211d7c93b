// Checks that a worker's batch has no more lookups of a table than int32 can number.
#ifndef THERMOCLINE_WORKER_DATA_LOOKUP_LIMIT_H_
#define THERMOCLINE_WORKER_DATA_LOOKUP_LIMIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/data/batch.h"

namespace thermocline {

class Job;  // proto/job.proto

struct LookupLimit {
  std::vector<std::string> features;  // Names, in the order of Batch::features; {}: no check.
  std::vector<std::string> tables;    // [features] The table that each reads.
  int64_t most = kMaxTableLookups;
};
// REQUIRES: a resolved job
LookupLimit LookupLimitOf(const Job& job);

// Checks `batch`, which was parsed from the slice of `raw`.
//   bad_rows: the rows of `raw` that were left out of `batch`, ascending
//   source: names rows in errors
// Errors: kInvalidArgument (names the first row that exceeds the limit, its feature and the table).
absl::Status CheckLookups(const LookupLimit& limit, const RawBatch& raw,
                          const std::vector<int64_t>& bad_rows, const Batch& batch,
                          BatchSource* source);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_LOOKUP_LIMIT_H_
