// Reads every byte of a checkpoint, to find out whether it can be restored and which rows it has.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_VERIFY_CHECKPOINT_H_
#define THERMOCLINE_COMMON_CHECKPOINT_VERIFY_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct VerifiedCheckpoint {
  Digest model_digest;               // The digest of servers that restore it.
  std::map<TableId, uint64_t> rows;  // Rows of every table that are not forgotten.
  uint64_t files = 0;
  uint64_t bytes = 0;
};

// Checks sizes, CRC-32C and block checksums of all files, the order of the rows, their tables and
// partitions, and that no row is missing. Reads everything once, the shards of several servers on
// up to `num_threads` threads.
//
// REQUIRES: CheckManifest(manifest) is OK.
// Errors: kDataLoss (names the file and what is wrong), kUnavailable (the disk).
absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    int num_threads = 1);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_VERIFY_CHECKPOINT_H_
