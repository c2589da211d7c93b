// The tables of a job: what the controller configures servers with, and what workers pull and push.
#ifndef THERMOCLINE_COMMON_JOB_JOB_TABLES_H_
#define THERMOCLINE_COMMON_JOB_JOB_TABLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/math/table_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// One input column (or several neighbouring ones, see Feature.columns) and the table it reads.
struct FeatureSpec {
  std::string name;
  int table_index = 0;  // in JobTables::sparse; also the table's id
  Pooling pooling = SUM;
  int columns = 1;
};

// A weight matrix or bias, kept as the rows 0 .. num_blocks()-1 of a table of its own: its floats
// in row-major order, kDenseBlockFloats a row, the last one padded.
struct DenseTable {
  TableLayout layout;
  int rows = 0;
  int cols = 0;

  int64_t num_floats() const { return int64_t{rows} * cols; }
  int64_t num_blocks() const { return (num_floats() + kDenseBlockFloats - 1) / kDenseBlockFloats; }
};

struct JobTables {
  std::vector<TableLayout> sparse;    // ids 0 .. S-1, in the order the features mention them
  std::vector<FeatureSpec> features;  // in the order of the data's columns
  // Ids S, S+1, ...: bottom.0.weight [in, out], bottom.0.bias [1, out], bottom.1.weight, ...,
  // top.0.weight, ...
  std::vector<DenseTable> dense;

  // All layouts by id.
  std::vector<TableLayout> AllLayouts() const;
};

// REQUIRES: a job that LoadJob returned.
JobTables ResolveTables(const Job& resolved);

// What the pushes of dense parameters take of a server's memory (cluster.max_pending_size) until
// they are applied, on the server that gets most: of one step the gradients of all workers; of one
// worker, which keeps the parameters, their rows at a cut and at the end. Keys, counts and values
// alone.
//
// REQUIRES: as ResolveTables.
uint64_t DensePushBytes(const Job& resolved);

// Of every table, and so of the bottom MLP's output.
int EmbeddingDim(const Job& resolved);

// Widths of the MLPs, input first: bottom {num_dense, ..., dim}, or none without dense columns;
// top {dim + V (V - 1) / 2, ..., 1} for V vectors, each pair once: one of each feature, and the
// bottom's output.
std::vector<int> BottomWidths(const Job& resolved);
std::vector<int> TopWidths(const Job& resolved);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_TABLES_H_
