// Runs a whole job (servers, workers and a launcher that die and come back, a bad network, disks
// that forget) in one thread from one seed, and checks that no push is lost, doubled or misplaced,
// and that checkpoints hold the model of their step.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_
#define THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/base/ids.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_job.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_streams.h"

namespace thermocline {

struct SimulationResult {
  std::vector<std::string> failures;  // Empty where every promise held.
  std::string setup;                  // What the seed chose.
  uint64_t trace = 0;                 // Hash of every message in order.
  uint64_t events = 0;
  uint64_t messages_lost = 0;
  uint64_t chunks_of_many = 0;       // Chunks that arrived, of pushes that have several.
  uint64_t chunks_refused = 0;       // Chunks for which a server had no room.
  uint64_t answers_of_the_dead = 0;  // Answers under way when their server died.
  uint64_t max_staleness = 0;        // In steps, of any rows that a worker used.
  uint64_t checkpoints_left = 0;     // Checkpoints at the end; each was restored.
  uint64_t steps_of_models = 0;      // Steps of jobs that train a model with a sequence.
  SimServerCounters servers;
  SimStreamCounters streams;
  SimJobCounters job;

  Step last_step;            // The last step that was trained.
  Step best_step = kNoStep;  // The best one by the job's evaluations, if it has any.
  Digest digest;             // The model's digest that the launcher got at the end.
  // It depends on the job alone: no row that was read depended on the order of arrivals.
  bool digest_is_certain = false;
};

// Everything (sizes, staleness, faults, keys) is chosen by the seed, but for the planted fault,
// which must be found.
SimulationResult RunSimulation(uint64_t seed, PlantedFault planted = PlantedFault::kNone);

// Runs the job of the same seed without any fault.
SimulationResult RunUndisturbed(uint64_t seed);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_
