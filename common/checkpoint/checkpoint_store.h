// A directory of checkpoints: which exist, which are whole, and which may be removed.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct ListedCheckpoint {
  std::string name;  // Of its folder.
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

struct Removal {
  uint64_t files = 0;  // The number of files removed.
  // Why others stayed that no checkpoint needs: one of another format version may need them. "":
  // none stayed for that reason.
  std::string held_back;
};

// One writer (a job's launcher) at a time; several readers. Keeps nothing in memory.
class CheckpointStore {
 public:
  // `disk` outlives it.
  CheckpointStore(Disk* disk, std::string directory)
      : disk_(disk), directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }

  // Makes the directory, and those above it, where they are missing. Errors: kUnavailable
  absl::Status Prepare();

  // When it returns, the checkpoint exists and survives any crash; one of the same step by an
  // earlier generation no longer exists. May be repeated for the same checkpoint.
  //
  // The run lock keeps launchers of earlier generations from committing. This call refuses them as
  // well, but could miss one that commits at the same moment.
  //
  // REQUIRES: CheckManifest(manifest) is OK.
  // Errors: kDataLoss (a file is missing or has another size: the servers write elsewhere?),
  // kFailedPrecondition (a later generation has begun, or has made this checkpoint),
  // kResourceExhausted, kUnavailable; it may or may not exist after the last two.
  absl::Status Commit(const CheckpointManifest& manifest);

  // Oldest first: by generation, then step, then name. A checkpoint is whole (status OK) if its
  // manifest can be read and every file it names has its size. Folders without a manifest are none.
  // Errors: kNotFound (no such directory), kUnavailable
  absl::StatusOr<std::vector<ListedCheckpoint>> List() const;
  // The last of List(); nullopt: there is none. Its error where it is not whole: the user chooses
  // another.
  absl::StatusOr<std::optional<CheckpointManifest>> Newest() const;
  // Reads the manifest in the folder `name`; no other file. `generation`: that made it; 0: any.
  // Errors: kInvalidArgument (no checkpoint's name), kNotFound (also where another generation's has
  // taken its place), kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<CheckpointManifest> Load(absl::string_view name, uint64_t generation = 0) const;
  // The newest generation of which there is any file. Errors: kUnavailable
  absl::StatusOr<uint64_t> NewestGeneration() const;
  // Whether every file of the manifest exists with its size. Errors: kDataLoss, kUnavailable
  absl::Status CheckFiles(const CheckpointManifest& manifest) const;
  // The same, and reads every byte of those files that `scan` does not know yet. Errors: kDataLoss,
  // kUnavailable, those of scan->on_progress
  absl::Status CheckBytes(const CheckpointManifest& manifest, ByteScan* scan) const;

  // Removes all checkpoints but the newest `keep` whole ones and `kept`, with all files that those
  // don't name, and the files of replaced and aborted checkpoints. Does not touch: files of those
  // `in_progress`, files behind the newest whole checkpoint (of later generations, or later steps
  // of its generation: they may be being written), damaged checkpoints' own folders (the user may
  // inspect them), files older than a checkpoint of another format version (it may need them).
  // Removes nothing where there is no whole checkpoint. Servers may write and remove their own
  // files at the same time.
  //
  // REQUIRES: keep >= 1. Errors: kUnavailable; whatever was removed, every checkpoint that List()
  // still shows is as it was.
  absl::StatusOr<Removal> RemoveUnneeded(uint32_t keep,
                                         const std::vector<CheckpointId>& in_progress,
                                         const std::optional<CheckpointId>& kept = std::nullopt);

  // Removes the folders of checkpoints in which nothing lies: cuts that were called off. REQUIRES:
  // no server writes. Errors: kUnavailable
  absl::Status RemoveEmptyFolders();

  // nullopt: there is none. Errors: kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<std::optional<JobState>> ReadJobState() const;
  // When it returns, the file is on the medium, and so is the manifest of the base that it names,
  // which a launcher that died may have left unsynced. format_version is filled in. Errors:
  // kNotFound (there is no folder of the base), kResourceExhausted, kUnavailable
  absl::Status WriteJobState(JobState state);

 private:
  struct Folder {
    std::string name;
    CheckpointFolder says;
  };
  struct FolderRemoval;
  class Keeping;

  std::string PathOf(absl::string_view name) const;
  absl::StatusOr<std::vector<Folder>> Folders() const;
  absl::StatusOr<uint64_t> GenerationOfDamaged(const Folder& folder) const;
  absl::StatusOr<std::string> FolderOf(const CheckpointId& id) const;
  absl::Status CheckIsNewest(const std::string& name, const CheckpointId& id) const;
  absl::Status RemoveFiles(const FolderRemoval& removal, uint64_t* removed);

  Disk* const disk_;
  const std::string directory_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
