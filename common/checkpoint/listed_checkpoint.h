// Checkpoints as a directory shows them, and which of them the user means.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_LISTED_CHECKPOINT_H_
#define THERMOCLINE_COMMON_CHECKPOINT_LISTED_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// A generation may begin with a checkpoint older than the newest: its checkpoints count as newer
// than those it left behind, whatever their steps.
inline bool IsOlder(const CheckpointId& a, const CheckpointId& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

struct ListedCheckpoint {
  std::string name;  // Of its folder.
  std::string file;  // Its manifest in there.
  // Where the manifest can't be read, the generation comes from the names of files: the newest if
  // they name several, or none. So an older checkpoint is not taken in its place.
  CheckpointId id;
  // kDataLoss: damaged (file and reason); kFailedPrecondition: another format version;
  // kUnavailable: the disk.
  absl::Status status;
  CheckpointManifest manifest;  // Where the manifest could be read.
};

// Reads the files of checkpoints, and each file only once although checkpoints share them.
struct ByteScan {
  // CheckBytes calls it with the number of bytes that it has read and will read. An error ends
  // CheckBytes with that error.
  std::function<absl::Status(uint64_t done, uint64_t total)> on_progress;
  std::map<std::string, absl::Status> known;  // The result for each file, by its path.
};

// The checkpoint that the user calls `name`: its folder, or "step-999" for short, with any number
// of zeros. Errors: kNotFound, kInvalidArgument (several have that step: names them)
absl::StatusOr<const ListedCheckpoint*> FindByName(const std::vector<ListedCheckpoint>& list,
                                                   const std::string& name);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_LISTED_CHECKPOINT_H_
