// What the hot rows of a job take (job.fae, a cache with policy STATIC), and the pack of them.
#ifndef THERMOCLINE_DEPLOY_PLAN_HOT_ROWS_PLAN_H_
#define THERMOCLINE_DEPLOY_PLAN_HOT_ROWS_PLAN_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "common/job/resolved_job.h"
#include "deploy/plan/job_plan.h"
#include "proto/job.pb.h"

namespace thermocline {

// The parts of one process of each kind, and of the disk.
struct HotRowsPlan {
  std::vector<PlanPart> compute;  // Where a worker computes: on its device, or in its memory.
  std::vector<PlanPart> pinned;   // In its memory, where it computes on a device.
  std::vector<PlanPart> worker;   // In its memory.
  std::vector<PlanPart> pack;     // In thermocline-pack's memory; it ends before the servers start.
  std::vector<PlanPart> disk;
};

// tables: as far as they are known; held_out_share: of the rows that `figures` (null: there are
// none) are of. REQUIRES: CountsHotRows(job)
HotRowsPlan PlanHotRows(const Job& job, const JobTables& resolved,
                        const std::vector<PlannedTable>& tables,
                        const nlohmann::ordered_json* figures, double held_out_share);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PLAN_HOT_ROWS_PLAN_H_
