// What a trainer tells of its run.
#ifndef THERMOCLINE_WORKER_TRAIN_TRAINER_REPORT_H_
#define THERMOCLINE_WORKER_TRAIN_TRAINER_REPORT_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/timing.h"

namespace thermocline {

// Where a step's time goes, on the training thread.
struct TrainerStages {
  StageTimer wait_data;            // for a planned batch
  StageTimer wait_rows;            // for the rows to arrive
  StageTimer forward;              // pooling, MLPs, interaction
  StageTimer backward_embeddings;  // loss, top MLP, interaction, segment sums
  StageTimer update_rows;          // those held here; on a device of its own: queueing it
  StageTimer wait_device;          // for what was queued on a device of its own
  StageTimer push_embeddings;      // handing their gradients to the source
  StageTimer backward_dense;       // bottom MLP and all weight gradients
  StageTimer apply_dense;          // where the dense parameters live here
  StageTimer push_dense;           // else; where they are exchanged, with the update of the slice
  StageTimer report;
  // From the end of a step to that of the next, without what an evaluation takes between them.
  LatencyHistogram step;
};

// What a window says of one of several tasks.
struct TaskReport {
  std::string label;
  // The mean loss over this worker's samples that have the label; NaN: there is none.
  double window_loss = 0;
  double batch_auc = 0;  // As TrainerReport has it.
};

// What is done so far. The window is what was done since the report before.
struct TrainerReport {
  int64_t steps = 0;            // The whole job's, those before this run included.
  uint32_t pass = 0;            // The last step's, from 1.
  float learning_rate = 0;      // The last step's.
  uint64_t samples = 0;         // This worker's in these steps.
  uint64_t global_samples = 0;  // All workers' in these steps, malformed lines included.
  double progress = 0;          // The share of the data, in [0, 1].
  uint64_t skipped_steps = 0;   // This run's steps of which the model made no gradient.
  // The mean loss over this worker's samples of steps that were not skipped; NaN: there is none. Of
  // several tasks it is the sum of their losses times their weights.
  double window_loss = NAN;
  uint64_t window_samples = 0;
  uint64_t window_global_samples = 0;
  // This worker's last batch's; NaN: the batch has one class only, or its scores are not known. Of
  // several tasks it is that of the one which decides in evaluations.
  double batch_auc = 0;
  std::vector<TaskReport> tasks;  // Where there are several.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_TRAINER_REPORT_H_
