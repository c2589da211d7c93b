// One run of `thermocline train` as a child process: on this machine, or with each server and
// worker on a host of its own.
#ifndef THERMOCLINE_DEPLOY_BENCH_TRAIN_RUN_H_
#define THERMOCLINE_DEPLOY_BENCH_TRAIN_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/bench/run_figures.h"
#include "deploy/bench/shaped_hosts.h"
#include "deploy/processes/signal_watch.h"

namespace thermocline {

struct TrainRun {
  std::vector<std::string> arguments;  // After `train`: the job and flags, without --run-dir.
  std::string run_dir;                 // Not there yet, or empty. The console goes to RUN_DIR.log.
  std::string bin_dir;                 // Of the agents' programs, if not beside this one.
  uint32_t servers = 1, workers = 1;
};

// The command line of the run, for people.
std::string CommandLineOf(const TrainRun& run);

// Runs it to its end. hosts: null, or as many as it has servers and workers; they go to the hosts
// in this order. None of its processes is left. Errors: kCancelled (a request to stop), kAborted
// (the run failed: what it said last), kDataLoss (it left no result). REQUIRES: called on the main
// thread
absl::StatusOr<RunFigures> RunTraining(const TrainRun& run, const ShapedHosts* hosts,
                                       SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_TRAIN_RUN_H_
