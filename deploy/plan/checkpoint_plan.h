// What a job's checkpoints take on disk.
#ifndef THERMOCLINE_DEPLOY_PLAN_CHECKPOINT_PLAN_H_
#define THERMOCLINE_DEPLOY_PLAN_CHECKPOINT_PLAN_H_

#include <cstdint>

#include "deploy/plan/job_plan.h"
#include "proto/job.pb.h"

namespace thermocline {

// Of a row in a checkpoint's file, at most: with what RocksDB's format adds.
uint64_t CheckpointRowBytes(uint64_t row_floats);

struct CheckpointSizes {
  uint64_t all_bytes = 0;             // Of one with all rows.
  double changed_bytes_per_step = 0;  // Of the rows that a step changes, at most.
  double steps = 0;                   // Of the whole job; 0: not known.
};

// Of all that are there at a time, at most. REQUIRES: job.has_checkpoint()
PlanPart CheckpointPart(const Job& job, const CheckpointSizes& sizes);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PLAN_CHECKPOINT_PLAN_H_
