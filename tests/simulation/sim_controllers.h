// Several controllers of one job over one directory of checkpoints, each of which may be paused in
// the middle of any operation while others go on: the real checkpoint store and HISTORY over
// network disks, and checks of what they decide.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_CONTROLLERS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_CONTROLLERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "tests/simulation/network_disk.h"
#include "tests/simulation/sim_random.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

// What a controller of the simulation does wrong, on purpose.
enum class ControllerFault {
  kNone,
  kCommitsInThePast,  // Takes a record of another for its own: an older one's checkpoint counts.
  kRetiresAlone,      // Removes without a record what another may have begun with.
  kTrustsOldFolders,  // Takes a record for absent because an old folder does not show it.
};

struct ControllersResult {
  std::vector<std::string> failures;
  uint64_t generations = 0, committed = 0, retired = 0, outcomes = 0, crashes = 0;
  uint64_t overtaken = 0;  // Controllers that found another's record.
  uint64_t uncertain = 0;  // Commits that may be there or not.
  uint64_t nested = 0;     // Operations of one in the middle of another's.
  NetworkDiskCounters disk;
  uint64_t trace = 0;
};

ControllersResult RunControllers(uint64_t seed, ControllerFault fault = ControllerFault::kNone);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_CONTROLLERS_H_
