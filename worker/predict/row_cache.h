// The rows of a checkpoint that predictions read, in bounded memory: those used last stay.
#ifndef THERMOCLINE_WORKER_PREDICT_ROW_CACHE_H_
#define THERMOCLINE_WORKER_PREDICT_ROW_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/row_lookup.h"
#include "common/math/table_spec.h"
#include "worker/plan/batch_plan.h"

namespace thermocline {

// A block of batches takes turns of three calls: Want for each, Load once, CopyRows for each.
//
// There are two generations of rows, each within half of the memory. A row that is wanted moves to,
// or is read into, the young one. Where that one is full between two blocks it becomes the old one,
// whose rows go. Not thread-safe.
class RowCache {
 public:
  // `lookup` outlives it. `tables`: those of the plans, in their order. A key without a row has its
  // initial row by `seed`, as on a server.
  RowCache(RowLookup* lookup, std::vector<TableLayout> tables, uint64_t seed,
           uint64_t memory_bytes);

  // Notes that the rows of `plan` are needed. False: they may not fit beside those of the block so
  // far, which is to be loaded and used first. Errors: kResourceExhausted (they don't fit alone:
  // says how much memory they take).
  absl::StatusOr<bool> Want(const BatchPlan& plan);

  // Reads what is missing. Errors: those of RowLookup.
  absl::Status Load();

  // rows: [num_unique of the table, dim]. REQUIRES: the plan was wanted in this block, and loaded
  void CopyRows(const TablePlan& plan, int table, absl::Span<float> rows) const;

  // Ends the block.
  void EndBlock() { block_bytes_ = 0; }

  uint64_t rows_read() const { return rows_read_; }  // From the checkpoint's files.

 private:
  // The rows of one table.
  class Rows {
   public:
    explicit Rows(int dim) : dim_(dim) {}
    // Null: there is none.
    const float* Find(Key key) const;
    // Room for the row of a new key.
    float* Add(Key key);

   private:
    float* At(uint32_t row) const;

    int dim_;
    absl::flat_hash_map<Key, uint32_t> index_;
    std::vector<std::unique_ptr<float[]>> chunks_;
  };
  struct Missing {
    RowKey key;
    int table = 0;
    float* row = nullptr;  // [dim]
  };
  std::vector<Rows> NoRows() const;
  uint64_t BytesOf(const BatchPlan& plan) const;

  RowLookup* const lookup_;
  const std::vector<TableLayout> tables_;
  const uint64_t seed_;
  const uint64_t generation_bytes_;  // Of each of the two.
  std::vector<Rows> young_, old_;    // By table.
  uint64_t young_bytes_ = 0;
  uint64_t block_bytes_ = 0;  // Of the block's plans; 0: it begins.
  std::vector<Missing> missing_;
  uint64_t rows_read_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PREDICT_ROW_CACHE_H_
