// Counts how often each row of each table is looked up.
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
  std::vector<Key> keys;         // Ascending.
  std::vector<uint32_t> counts;  // [keys] A count stays at 2^32 - 1.
  uint64_t lookups = 0;
};

// Takes about 20 bytes of memory for each distinct key. Not thread-safe.
class LookupCounts {
 public:
  // `pool` must outlive this object.
  LookupCounts(const JobTables& tables, ThreadPool* pool);

  // Counts the lookups of batches. Each table is counted by one thread, so the counts are the same
  // for any number of threads.
  void Add(absl::Span<const std::unique_ptr<Batch>> batches);
  // Ends the counting, and returns the counts. [tables]
  std::vector<CountedTable> Finish();

 private:
  ThreadPool& pool_;
  std::vector<std::vector<int>> features_;  // [tables] The features that read each table.
  std::vector<absl::flat_hash_map<Key, uint32_t>> counts_;
  std::vector<uint64_t> lookups_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_LOOKUP_COUNTS_H_
