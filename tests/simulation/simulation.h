// Runs a whole job (servers that die and come back, workers, a bad network) in one thread from one
// seed, and checks that no push is lost, doubled or misplaced.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_
#define THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_server.h"

namespace thermocline {

struct SimulationResult {
  std::vector<std::string> failures;  // Empty where every promise held.
  std::string setup;                  // What the seed chose.
  uint64_t trace = 0;                 // Hash of every message in order.
  uint64_t events = 0;
  uint64_t messages_lost = 0;
  uint64_t parts_of_many = 0;        // Parts of pushes in more than one, that arrived.
  uint64_t parts_refused = 0;        // For lack of room.
  uint64_t answers_of_the_dead = 0;  // Under way when the server died.
  uint64_t max_staleness = 0;        // Steps, of any rows that a worker used.
  SimServerCounters servers;
};

// Everything (sizes, staleness, faults, keys) is chosen by the seed, but for the planted fault,
// which must be found.
SimulationResult RunSimulation(uint64_t seed, PlantedFault planted = PlantedFault::kNone);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIMULATION_H_
