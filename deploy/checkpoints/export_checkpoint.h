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
  // The file of what the job's script keeps in checkpoints; "": there is no script, or it has kept
  // nothing so far.
  std::string script_state;
  uint64_t script_state_bytes = 0;
};

// Verifies the checkpoint, then writes `path`, whole or not at all. Takes memory for the dense
// parameters, or for what a script keeps, and a few MB.
//
// What the job's script keeps (Job.worker) gets a file of its own beside `path`, with the bytes as
// the script gave them: MODEL.state.safetensors beside MODEL.safetensors, else PATH.state. It gets
// its name after `path` has got its own. Where the script has kept nothing, such a file of an
// earlier export is not removed: the export is refused.
//
// Errors: those of VerifyCheckpoint (names the damaged file); kFailedPrecondition (the manifest's
// job doesn't describe its tables); kAlreadyExists (the file of a state, and the script has kept
// none); kInvalidArgument (two tensors of one name); kResourceExhausted, kUnavailable (the disk).
absl::StatusOr<ExportedCheckpoint> ExportCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    const std::string& path,
                                                    const ExportOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_EXPORT_CHECKPOINT_H_
