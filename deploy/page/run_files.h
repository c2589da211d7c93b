// What the files of a run say beside metrics.jsonl.
#ifndef THERMOCLINE_DEPLOY_PAGE_RUN_FILES_H_
#define THERMOCLINE_DEPLOY_PAGE_RUN_FILES_H_

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "deploy/report/left_stats.h"
#include "proto/job.pb.h"

namespace thermocline {

// Any of the files may be missing or damaged; the notes say which, and what the page lacks for it.
struct RunFiles {
  std::string run_dir;
  std::string job_text;                // job.textproto; "": it can't be read.
  std::optional<Job> job;              // The same, where it is a job.
  nlohmann::ordered_json summary;      // summary.json; null: there is none.
  nlohmann::ordered_json inspection;   // What `inspect --json` printed; null: there is none.
  nlohmann::ordered_json calibration;  // What `calibrate --json` printed; null: there is none.
  StatsSnapshot stats;                 // What the processes answered or left.
  std::map<std::string, std::string> hosts;  // Where a process ran last, by its name.
  std::string resume_command;
  bool stats_are_left = false;  // `stats` are those that processes left at the end of a launch.
  bool is_locked = false;       // The launcher or one of its processes runs.
  std::vector<std::string> notes;
};

// Reads all of them but the stats.
RunFiles ReadRunFiles(const std::string& run_dir);
// Reads the stats that processes left; notes what is missing of a run that does not go on.
void ReadStatsOf(RunFiles* files);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_RUN_FILES_H_
