// Keeps the rows of a checkpoint that predictions read, in bounded memory. The rows used last stay.
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

// For each block of batches, call Want for each batch, Load once, CopyRows for each batch, and
// EndBlock.
//
// There are two generations of rows, the young and the old one, each within half of the memory. A
// row that is wanted is copied to the young generation, or read into it. If that is full when a
// block begins, it becomes the old generation, and the rows of the old one are dropped. Not
// thread-safe.
class RowCache {
 public:
  // `lookup` must outlive this object. A key without a row has its initial row by `seed`, as on a
  // server.
  //   tables: those of the plans, in the plans' order
  RowCache(RowLookup* lookup, std::vector<TableLayout> tables, uint64_t seed,
           uint64_t memory_bytes);

  // Adds the rows of `plan` to the block. Returns false, and adds none, if they may not fit beside
  // the block's rows so far: the caller has to load and use that block first. Errors:
  // kResourceExhausted (they don't fit alone: says how much memory they take).
  absl::StatusOr<bool> Want(const BatchPlan& plan);

  // Reads the block's rows that are not in memory. Errors: RowLookup's.
  absl::Status Load();

  // rows: [num_unique of the table, dim]. REQUIRES: the plan was wanted in this block, and loaded
  void CopyRows(const TablePlan& plan, int table, absl::Span<float> rows) const;

  // Ends the block.
  void EndBlock() { block_bytes_ = 0; }

  uint64_t rows_read() const { return rows_read_; }  // How many rows it read from the files.

 private:
  // The rows of one table.
  class Rows {
   public:
    explicit Rows(int dim) : dim_(dim) {}
    // Returns null if there is no such row.
    const float* Find(Key key) const;
    // Makes room for the row of a new key.
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
  const uint64_t generation_bytes_;  // The memory of each generation.
  std::vector<Rows> young_, old_;    // [tables]
  uint64_t young_bytes_ = 0;
  uint64_t block_bytes_ = 0;  // The most that the block's rows may take; 0: it has no plan yet.
  std::vector<Missing> missing_;
  uint64_t rows_read_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PREDICT_ROW_CACHE_H_
