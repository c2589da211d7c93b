// What is known of a job's data before it runs: the figures that `inspect --json` prints.
#ifndef THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_
#define THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "deploy/plan/job_plan.h"
#include "deploy/processes/signal_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

// Where they come from.
struct FiguresFlags {
  std::string file;   // --figures; "": none
  bool scan = false;  // --scan: the job's training data are read now
};

// Refuses a command line that has both --figures and --scan.
void RefuseBoth(CLI::Option* figures, const CLI::Option* scan);

// nullopt: neither was asked for. A scan runs the program thermocline-inspect, of `bin_dir` where
// that is not empty, and shows its progress on `fd`. Errors: kInvalidArgument (the file is none of
// inspect's), kNotFound, those of the scan.
absl::StatusOr<std::optional<nlohmann::ordered_json>> FiguresOf(const Job& job,
                                                                const FiguresFlags& flags,
                                                                const std::string& bin_dir, int fd,
                                                                SignalWatch* signals);

// PlanJob with figures from a file, which may lack anything. Errors: those of PlanJob, and
// kInvalidArgument.
absl::StatusOr<JobPlan> PlanOf(const Job& job, const PlanInputs& inputs, const Machine& machine);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_
