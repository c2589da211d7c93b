// Everything of a simulated job that its seed chooses beforehand.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/math/table_spec.h"
#include "server/core/server_config.h"
#include "server/storage/push_journal.h"
#include "tests/simulation/sim_faults.h"
#include "tests/simulation/sim_network.h"
#include "tests/simulation/sim_random.h"

namespace thermocline {

// A worker gives a silent server up after so long ...
inline constexpr int64_t kSimGiveUpMicros = 20'000'000;
// ... and waits for one that refuses it, here at most so long. Two of those are no stall yet.
inline constexpr int64_t kMaxOverloadMicros = 25'000'000;

// How a job makes checkpoints.
struct CheckpointSetup {
  uint64_t every_steps = 0;
  uint32_t full_every = 1;
  uint32_t keep = 1;
  bool at_end = true;
  uint64_t max_log_bytes = UINT64_MAX;
  int64_t poll_us = 20'000;    // Between two rounds of the launcher, at the most.
  int64_t notice_us = 50'000;  // Until it sees that a process died, at the most.
};

// How a job is evaluated while it trains. Where it makes checkpoints, the best is kept.
struct EvaluationSetup {
  uint64_t every_steps = 1;
  uint32_t patience = 0;
};

struct SimSetup {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t max_server_restarts = 10;
  uint32_t max_rollbacks = 10;
  uint32_t staleness_steps = 0;
  int64_t num_steps = 10;
  uint64_t num_keys = 40;
  int keys_per_table = 8;
  int64_t slow_rank_us = 0;  // Rank 0 computes so long, at the most; the others not at all.
  size_t max_chunk_bytes = 512;
  ServerLimits limits;
  NetworkFaults faults;
  std::optional<LogDurability> durability;
  std::optional<CheckpointSetup> checkpoints;
  std::optional<EvaluationSetup> evaluations;
  CrashFaults crashes;        // Of servers with a durability, or where there are checkpoints.
  LauncherFaults launcher;    // Where there are.
  OverloadFaults overload;    // Of server 0.
  bool crash_at_end = false;  // All of them once more, when everything is acknowledged.
  std::vector<TableLayout> tables;
};

SimSetup ChooseSetup(SimRandom* random);
// The same job on one server that never dies, with workers that don't, over a kind network, without
// a checkpoint.
SimSetup Undisturbed(SimSetup setup);
// In one line.
std::string Describe(const SimSetup& setup);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_SETUP_H_
