// Exports a checkpoint as one safetensors file, for other programs (docs/formats.md).
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_EXPORT_CHECKPOINT_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_EXPORT_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct ExportOptions {
  bool optimizer_state = false;  // Exports the optimizers' state, too.
};

struct ExportedCheckpoint {
  VerifiedCheckpoint verified;
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // The file's size.
};

// Verifies the checkpoint, then writes `path`, whole or not at all. Takes memory for the dense
// parameters and a few MB.
//
// Errors: those of VerifyCheckpoint (names the damaged file); kFailedPrecondition (the manifest's
// job doesn't describe its tables); kInvalidArgument (two tensors of one name); kResourceExhausted,
// kUnavailable (the disk).
absl::StatusOr<ExportedCheckpoint> ExportCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    const std::string& path,
                                                    const ExportOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_EXPORT_CHECKPOINT_H_
