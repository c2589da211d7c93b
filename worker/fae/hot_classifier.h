// Finds the samples that read hot rows only.
#ifndef THERMOCLINE_WORKER_FAE_HOT_CLASSIFIER_H_
#define THERMOCLINE_WORKER_FAE_HOT_CLASSIFIER_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/ids.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "worker/data/batch.h"
#include "worker/fae/calibration.h"
#include "worker/plan/hot_set.h"

namespace thermocline {

// Goes through all training samples in their order. A row of a table that is hot whole becomes hot
// at its first lookup, even if calibration did not see it, as long as the budget has room for it.
// Once it has no room for one, no further row of any table becomes hot. Not thread-safe.
class HotClassifier {
 public:
  HotClassifier(const JobTables& tables, const std::vector<CountedTable>& counted,
                const CalibrationResult& result);

  // Sets is_hot[i] for sample i of the next batch. The result is the same for any number of
  // threads.
  void Classify(const Batch& batch, ThreadPool* pool, std::vector<uint8_t>* is_hot);

  // Counts over all batches so far.
  struct Totals {
    int64_t samples = 0;
    int64_t hot_samples = 0;
    uint64_t lookups = 0;
    uint64_t hot_lookups = 0;
    // Rows of whole tables that calibration did not see.
    int64_t added_rows = 0;
    int64_t added_bytes = 0;
    // Whether the budget had no room for such a row.
    bool is_full = false;
  };
  const Totals& totals() const { return totals_; }

  // Returns the rows that are hot now.
  HotSet MakeHotSet() const;

 private:
  void AddRowsOfWholeTables(const Batch& batch);
  // Classifies samples [begin, end).
  void ClassifyRows(const Batch& batch, int begin, int end, uint8_t* is_hot, Totals* totals) const;

  std::vector<int> table_of_;  // [features]
  std::vector<TableCalibration> tables_;
  std::vector<absl::flat_hash_set<Key>> hot_;  // [tables]
  int64_t free_bytes_ = 0;
  Totals totals_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_HOT_CLASSIFIER_H_
