// A job over several hosts: real node agents, controllers (node table, job machine, checkpoint
// store and HISTORY over network disks), servers and workers, in one thread, from a seed. Links are
// cut, also in one direction; hosts, processes and controllers are paused, also in the middle of a
// write; clocks stand; and while one controller is paused another one is started.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_CLUSTER_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_CLUSTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/base/ids.h"
#include "tests/simulation/network_disk.h"
#include "tests/simulation/sim_runner.h"
#include "tests/simulation/sim_setup.h"
#include "tests/simulation/sim_streams.h"

namespace thermocline {

// What is wrong, on purpose.
enum class ClusterFault {
  kNone,
  kSameNonce,         // An agent that is started again registers as the one before.
  kOneWayLease,       // An order renews the lease, whichever heartbeat it answers.
  kCommitsInThePast,  // As ControllerFault.
  kTrustsOldFolders,
  kOldGenerations,  // Servers take the pushes and pulls of other generations.
  kOldBlocks,       // Workers take the blocks of generations before their own.
};

struct ClusterSetup {
  uint64_t seed = 0;
  uint32_t num_hosts = 3, num_servers = 2, num_workers = 2;
  int64_t num_steps = 40;
  uint64_t every_steps = 7;      // Checkpoints
  int64_t compute_us = 100'000;  // A step computes so long, at the most.
  uint64_t num_keys = 40;        // This and the next mean what they do in SimWorkerOptions.
  int keys_per_table = 8;
  int troubles = 12;              // How often something happens.
  std::vector<DenseTable> dense;  // As SimSetup.
  std::optional<ExchangeSetup> exchange;
  ClusterFault fault = ClusterFault::kNone;
};

// Messages between processes and their bytes; what a controller did.
struct ClusterTraffic {
  uint64_t orders = 0, order_bytes = 0, reports = 0, report_bytes = 0;
  uint64_t pulls = 0, pushes = 0, data_bytes = 0;
  SimWork work;
};

struct ClusterCounters {
  uint64_t controllers = 0, generations = 0, overtaken = 0, interrupted = 0;
  uint64_t cuts = 0, one_way = 0, pauses = 0, stopped_clocks = 0;
  uint64_t agents_killed = 0, hosts_killed = 0, processes_killed = 0, controllers_killed = 0;
  uint64_t leases_lost = 0;  // Registrations anew, of an agent that was there.
  uint64_t left_behind = 0;  // Processes that ran when a later generation began.
  uint64_t strays = 0;       // Calls that came to a server of another generation.
  uint64_t committed = 0;
  NetworkDiskCounters disk;
  SimStreamCounters streams;

  void Add(const ClusterCounters& other);
};

struct ClusterResult {
  std::vector<std::string> failures;
  Digest digest;  // The digest that the controller got at the end.
  Step last_step = kNoStep;
  ClusterCounters counters;
  ClusterTraffic traffic;
  int64_t micros = 0;  // How long the job took.
  uint64_t trace = 0;
};

// A small job with troubles, as the seed says.
ClusterSetup ChooseCluster(uint64_t seed, ClusterFault fault = ClusterFault::kNone);
// The same job without.
ClusterSetup Undisturbed(ClusterSetup setup);
ClusterResult RunCluster(const ClusterSetup& setup);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_CLUSTER_H_
