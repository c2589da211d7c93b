// The last stats of the processes of a run, as they left them in its run directory.
#ifndef THERMOCLINE_DEPLOY_REPORT_LEFT_STATS_H_
#define THERMOCLINE_DEPLOY_REPORT_LEFT_STATS_H_

#include <string>
#include <vector>

#include "deploy/report/stats_table.h"

namespace thermocline {

// What the processes of a job have answered to one question after their stats, or left at their
// end.
struct StatsSnapshot {
  std::vector<ServerReport> servers;  // By index.
  std::vector<WorkerReport> workers;  // By rank.
};

// Reads server_stats.json and the worker-N.json from 0 on, up to the first that is missing or no
// JSON. A file may be of another version: what this one does not know is left out.
StatsSnapshot ReadLeftStats(const std::string& run_dir);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_LEFT_STATS_H_
