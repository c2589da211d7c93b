// One step's data on its way through a worker: the batch, its plan, the rows it reads and the
// gradients it makes. A few of them go round in a ring, so that their memory is allocated once.
#ifndef THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_
#define THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_

#include <memory>
#include <vector>

#include "common/completion.h"
#include "common/ids.h"
#include "common/uninitialized_vector.h"
#include "worker/data/batch.h"
#include "worker/sparse/batch_plan.h"

namespace thermocline {

struct StepWork {
  std::unique_ptr<Batch> batch;
  BatchPlan plan;
  // Of each table, in the plan's staging order: [num_unique, dim].
  std::vector<UninitializedVector<float>> rows;
  std::vector<UninitializedVector<float>> gradients;

  // For the embedding source.
  UninitializedVector<float> dense_rows;    // blocks pulled
  UninitializedVector<float> dense_values;  // blocks to push
  Completion fetched;
  Step complete_through;  // Once fetched: every worker's pushes up to here are in the rows.

  Step step() const { return batch->step; }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_
