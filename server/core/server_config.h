// The configuration of a parameter server: the job it serves, its shard, and its limits.
#ifndef THERMOCLINE_SERVER_CORE_SERVER_CONFIG_H_
#define THERMOCLINE_SERVER_CORE_SERVER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "server/storage/push_journal.h"

namespace thermocline {

// More than any job needs; keeps a malformed request from sizing our arrays.
inline constexpr uint32_t kMaxWorkers = 4096;

struct ServerConfig {
  std::string job_id;
  uint64_t generation = 0;
  ServerIndex server_index;
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint64_t seed = 0;
  uint32_t staleness_steps = 0;
  // How durable a push is before it is acknowledged; nullopt: it is lost with the process.
  std::optional<LogDurability> durability;
  std::vector<TableLayout> tables;

  std::string checkpoint_directory;  // Empty: there are no checkpoints.
  // This server begins with the rows of this checkpoint in checkpoint_directory; empty: with no
  // row. It may differ when a server is configured again.
  std::string base_checkpoint;
  uint64_t base_generation = 0;  // The generation that made it; 0: any.
  // Without base_checkpoint, this server begins with the rows of this checkpoint of another run,
  // below init_directory; empty: with no row.
  std::string init_directory, init_checkpoint;
  uint64_t init_generation = 0;               // The generation that made it; 0: any.
  uint64_t init_steps = 0;                    // Steps that the optimizers made before step 0.
  std::vector<std::string> init_begins_anew;  // Rows of these tables are not taken from it.
  uint64_t checkpoint_every_steps = 0;  // A cut after every so many steps; 0: only named cuts.
  uint32_t checkpoint_full_every = 1;   // Every so many checkpoints hold all rows.
};

struct ServerLimits {
  int64_t hold_us = 5'000'000;                   // A pull is held at most so long, then NOT_READY.
  uint32_t max_held_pulls = 4096;                // More are refused with kResourceExhausted.
  uint64_t max_pending_push_bytes = 4ull << 30;  // Pushes being assembled or waiting to be applied.
  // While rows are read for a checkpoint, old images of changed rows may take this share of the
  // memory of the tables' rows, or min_old_image_bytes where that is more. Once they take more, no
  // further step is applied.
  double max_old_image_share = 0.125;
  uint64_t min_old_image_bytes = 64ull << 20;
  int apply_threads = 1;
  int load_threads = 1;  // For a checkpoint's rows, while nothing else is served.
};

// Errors: kInvalidArgument (names the field and its value).
absl::Status ValidateServerConfig(const ServerConfig& config);

// Names the first difference, or "" where there is none: "generation is 3 here, 4 there". A `there`
// without a checkpoint directory agrees with any.
std::string DescribeDifference(const ServerConfig& here, const ServerConfig& there);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_SERVER_CONFIG_H_
