// The most lookups of a table that a worker's batch may have.
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
  std::vector<std::string> features;  // Names, as in the batches; {}: nothing is checked.
  std::vector<std::string> tables;    // Of each feature.
  int64_t most = kMaxTableLookups;
};
// Of a resolved job.
LookupLimit LookupLimitOf(const Job& job);

// bad_rows: rows of `raw` that were left out of `batch`, ascending. Errors: kInvalidArgument (names
// the first row that exceeds the limit, its feature and the table).
absl::Status CheckLookups(const LookupLimit& limit, const RawBatch& raw,
                          const std::vector<int64_t>& bad_rows, const Batch& batch,
                          BatchSource* source);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_LOOKUP_LIMIT_H_
