// How often each row of each table is looked up, in the rows that were read.
#ifndef THERMOCLINE_WORKER_FAE_LOOKUP_COUNTS_H_
#define THERMOCLINE_WORKER_FAE_LOOKUP_COUNTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "worker/data/batch.h"

namespace thermocline {

// The rows of a table that were looked up.
struct CountedTable {
  std::vector<Key> keys;         // ascending
  std::vector<uint32_t> counts;  // [keys.size()], at most 2^32 - 1 each
  uint64_t lookups = 0;
};

// Takes about 20 bytes of memory a distinct key. Not thread-safe.
class LookupCounts {
 public:
  // `pool` outlives it.
  LookupCounts(const JobTables& tables, ThreadPool* pool);

  // A thread counts whole tables, so the counts are the same for any number of threads.
  void Add(absl::Span<const std::unique_ptr<Batch>> batches);
  // Ends the counting.
  std::vector<CountedTable> Finish();

 private:
  ThreadPool& pool_;
  std::vector<std::vector<int>> features_;  // of each table
  std::vector<absl::flat_hash_map<Key, uint32_t>> counts_;
  std::vector<uint64_t> lookups_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_LOOKUP_COUNTS_H_
