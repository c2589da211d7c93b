// Compares the rows of servers and checkpoints with the sequential model.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_CHECKS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_CHECKS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/math/table_spec.h"
#include "server/core/server_config.h"
#include "server/core/server_core.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_server.h"

namespace thermocline {

Digest DigestOf(const SequentialModel::Rows& rows);

// Tables whose rows workers hold between steps. Of these no server knows when a row was changed
// last, and it has them whole only when the workers have written them.
struct WorkersTables {
  std::set<TableId> held;
  bool are_written = true;
};

// Compares every row of a server, its state, its count and its last change, bit for bit, with the
// model after the last step that the server has applied. The server must have no other rows.
// Differences are appended to `failures`.
void CheckServerRows(const SequentialModel& model, const WorkersTables& tables,
                     uint32_t num_servers, SimServer* server, std::vector<std::string>* failures);

// By generation and step: what checkpoints of earlier generations hold at the end of each line. The
// others hold the present model's rows of their step.
using CheckpointLines = std::map<std::pair<uint64_t, Step>, SequentialModel::Line>;

// Checks that every remaining checkpoint is whole, and that `num_servers` servers that begin with
// it hold its rows. Returns the number of checkpoints.
uint64_t CheckCheckpoints(const SequentialModel& model, const CheckpointLines& lines,
                          const std::set<TableId>& held, const ServerConfig& config,
                          uint32_t num_servers, Disk* disk, const CheckpointStore& store,
                          std::vector<std::string>* failures);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_CHECKS_H_
