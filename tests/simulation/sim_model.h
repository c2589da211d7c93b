// A small model with attention over a sequence, which the workers of some jobs train in place of
// drawing their gradients. It reads the job's first table in three ways: step by step, as a pooled
// list, and by the sample's own item, which is the sequence's last step as well.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_MODEL_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "kernels/device.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/server_blocks.h"
#include "tests/simulation/sim_random.h"
#include "worker/data/batch.h"
#include "worker/plan/batch_plan.h"
#include "worker/train/model_step.h"

namespace thermocline {

struct SimModel {
  Job job;
  JobTables tables;  // The dense ones' ids come behind the sparse ones'.

  // A few samples, maybe none, with keys Mix64(0) .. Mix64(num_keys - 1).
  std::unique_ptr<Batch> MakeBatch(Step step, WorkerRank rank, uint64_t num_keys,
                                   SimRandom* random) const;
  // The distinct keys that the batch reads of a sparse table.
  std::vector<Key> KeysOf(const Batch& batch, TableId table) const;
  std::unique_ptr<DeviceModelStep> MakeStep(Device* device) const;
};

// The model over these tables; dense: the optimizer of its dense parameters.
SimModel MakeSimModel(const std::vector<TableLayout>& sparse, const OptimizerConfig& dense);

// Computes a model's gradients by itself: nothing is kept between two steps, and no row lies where
// a cache or several servers would have it.
class SimModelReference {
 public:
  // `model` outlives it.
  explicit SimModelReference(const SimModel* model);

  // The updates of all keys of the batch, and of all dense parameters. rows: theirs
  std::vector<ModelUpdate> UpdatesOf(std::unique_ptr<Batch> batch,
                                     const std::vector<RowsOfTable>& rows);

 private:
  const SimModel& model_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceModelStep> step_;
  BatchPlanner planner_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_MODEL_H_
