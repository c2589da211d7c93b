// What is known of a job's data before it runs: the figures that `inspect --json` prints.
#ifndef THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_
#define THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/plan/job_plan.h"
#include "deploy/processes/signal_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

// Where they come from.
struct FiguresFlags {
  std::string file;   // --figures; "": none
  bool scan = false;  // --scan: the job's training data are read now
  std::string bin_dir;
};

// Errors: kInvalidArgument (both are given).
absl::Status CheckFiguresFlags(const FiguresFlags& flags);

// nullopt: neither was asked for. Shows the scan's progress on `fd`. Errors: kInvalidArgument (as
// CheckFiguresFlags; the file is none of inspect's), kNotFound, those of the scan.
absl::StatusOr<std::optional<nlohmann::ordered_json>> FiguresOf(const Job& job,
                                                                const FiguresFlags& flags, int fd,
                                                                SignalWatch* signals);

// PlanJob with figures that someone may have changed. Errors: also kInvalidArgument.
absl::StatusOr<JobPlan> PlanOf(const Job& job, const PlanInputs& inputs, const Machine& machine);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_DATA_FIGURES_H_
