// Which host runs which process of a generation.
#ifndef THERMOCLINE_DEPLOY_JOB_PLACEMENT_H_
#define THERMOCLINE_DEPLOY_JOB_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/job/host.h"
#include "deploy/job/process.h"
#include "proto/job.pb.h"

namespace thermocline {

struct Placement {
  std::vector<std::string> servers;   // [num_servers] hosts; empty: all run on this machine
  std::vector<std::string> workers;   // [num_workers] hosts
  std::vector<uint32_t> local_ranks;  // [num_workers] rank among the workers of the host
  std::vector<std::string> notices;   // For users: hosts that take more than was meant.

  // "": this machine.
  std::string HostOf(ProcessRole role, size_t index) const;
  uint32_t LocalRank(size_t rank) const;
  bool Uses(const std::string& host) const;
  // "h1: servers 0-1, worker 0; h2: server 2, workers 1-2"
  std::string Describe() const;
};

// Spreads the servers over the hosts that take servers, and the workers over those that take
// workers, evenly by the hosts' memory; each host gets neighbors. Where the job may use GPUs and
// hosts that take workers have any, the workers go to those hosts only, evenly by their GPUs: no
// host runs more workers than it has GPUs while another has one left. The same for the same hosts,
// in whatever order.
//
// Errors: kFailedPrecondition (no host takes servers, or workers; device is CUDA and no host that
// takes workers has a GPU)
absl::StatusOr<Placement> Place(std::vector<Host> hosts, size_t num_servers, size_t num_workers,
                                Job::Device device);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_PLACEMENT_H_
