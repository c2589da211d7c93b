// The checkpoint that a server begins with: checks its manifest and loads its rows.
#ifndef THERMOCLINE_SERVER_CORE_BASE_CHECKPOINT_H_
#define THERMOCLINE_SERVER_CORE_BASE_CHECKPOINT_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"
#include "server/checkpoint/checkpoint_cuts.h"
#include "server/core/server_config.h"
#include "server/tables/table_set.h"

namespace thermocline {

// Reads the manifest of config.base_checkpoint. REQUIRES: config names one.
// Errors: kFailedPrecondition (it is of another job, other tables, another seed or a later
// generation: names the difference; another format), kNotFound (also where its generation isn't
// config.base_generation), kDataLoss (damaged), kUnavailable (the disk), kInvalidArgument (no
// name).
absl::StatusOr<CheckpointManifest> ReadBaseManifest(Disk* disk, const ServerConfig& config);

// What a server that begins with `base` knows of its generation's checkpoints.
CutHistory HistoryOf(const CheckpointManifest& base, const ServerConfig& config);

// Loads the rows whose partitions this server owns, whatever number of servers wrote them, on
// `num_threads` threads, one of them the caller's. `progress` is called on any of these with each
// some thousand rows loaded; its error stops the loading.
// REQUIRES: `base` is what ReadBaseManifest returned; nothing else uses the tables.
// Errors: kDataLoss (names the file), kUnavailable, those of the tables and of `progress`.
absl::Status LoadBaseRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& base,
                          int num_threads, TableSet* tables,
                          absl::FunctionRef<absl::Status(uint64_t rows)> progress);

// Reads the manifest of config.init_checkpoint. REQUIRES: config names one.
// Errors: kFailedPrecondition (a table of the job has other rows there: names it; another format),
// kNotFound (the checkpoint is gone: says which), kDataLoss, kUnavailable, as above.
absl::StatusOr<CheckpointManifest> ReadInitManifest(Disk* disk, const ServerConfig& config);

// As LoadBaseRows, but tables are matched by name, whatever their ids, and the rows count as not
// changed by any step of this job. REQUIRES: `init` is what ReadInitManifest returned; as above.
absl::Status LoadInitRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& init,
                          int num_threads, TableSet* tables,
                          absl::FunctionRef<absl::Status(uint64_t rows)> progress);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_BASE_CHECKPOINT_H_
