// A directory of checkpoints: lists them, checks whether they are whole, commits and removes them.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/history.h"
#include "common/checkpoint/listed_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// The order of age. A generation may begin with a checkpoint older than the newest; its own
// checkpoints are newer than all earlier ones, whatever their steps.
inline bool IsOlder(const CheckpointId& a, const CheckpointId& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

struct ListedCheckpoint {
  std::string name;  // The folder's.
  std::string file;  // The manifest in the folder.
  // Where the manifest can't be read, the generation comes from the files' names: it is the newest
  // one if they name several, or none. So no older checkpoint is taken instead.
  CheckpointId id;
  // kDataLoss: damaged (file and reason); kFailedPrecondition: another format version;
  // kUnavailable: the disk.
  absl::Status status;
  CheckpointManifest manifest;  // Empty where it can't be read.
};

// Reads the files of checkpoints, and each file only once although checkpoints share them.
struct ByteScan {
  // CheckBytes calls it with the number of bytes that it has read and will read. An error ends
  // CheckBytes with that error.
  std::function<absl::Status(uint64_t done, uint64_t total)> on_progress;
  std::map<std::string, absl::Status> known;  // The result for each file, by its path.
};

// The checkpoint that the user calls `name`: a folder, or "step-999" for short, with any number of
// zeros. Errors: kNotFound, kInvalidArgument (several have that step: names them)
absl::StatusOr<const ListedCheckpoint*> FindByName(const std::vector<ListedCheckpoint>& list,
                                                   const std::string& name);

struct Removal {
  uint64_t files = 0;  // The number of files removed.
  // Why files stayed that no checkpoint needs: a checkpoint of another format version may need
  // them.
  // "": none stayed.
  std::string held_back;
};

// Random numbers of the operating system, for HISTORY's nonces.
std::function<uint64_t()> RandomNonces();

// There may be several readers. A writer (a job's controller) begins with Open; of several writers,
// only the last one that called Open writes (history.h). Copies share the writer's state.
// Thread-safe.
class CheckpointStore {
 public:
  // `disk` outlives the store. So many `threads` look for a checkpoint's files at the same time.
  CheckpointStore(Disk* disk, std::string directory,
                  std::function<uint64_t()> nonces = RandomNonces(), int threads = 1)
      : disk_(disk),
        directory_(std::move(directory)),
        history_(std::make_shared<History>(disk, directory_, std::move(nonces))),
        checked_(std::make_shared<CheckedFiles>(threads)) {}

  const std::string& directory() const { return directory_; }

  // Makes the directory, and those above it, where they are missing. Errors: kUnavailable
  absl::Status Prepare();

  // Begins a generation. When this returns, its record is on the medium, and so is the manifest of
  // its base. `after`: for the writer's first generation, the number of the record (LastRecord) by
  // which the base was chosen; 0: there was none. Errors: kAborted (another controller writes here;
  // all later calls of this writer return kAborted, too), kNotFound (the base has no folder),
  // kFailedPrecondition (the file system has no links), kResourceExhausted, kUnavailable
  absl::Status Open(JobState state, uint64_t after);
  // Makes a checkpoint valid. When this returns, the checkpoint survives any crash, and one of the
  // same step by an earlier generation is no longer valid. May be repeated for the same checkpoint.
  // A writer that has not called Open writes a manifest alone, as earlier programs did. Opens only
  // files that this store has not found whole before, or whose commit failed since.
  //
  // REQUIRES: CheckManifest(manifest) is OK.
  // Errors: kDataLoss (a file is missing or has another size: the servers write elsewhere?),
  // kAborted, kFailedPrecondition (a later generation has begun), kResourceExhausted, kUnavailable
  // (where *may_exist is set, the checkpoint may be valid or not)
  absl::Status Commit(const CheckpointManifest& manifest, bool* may_exist = nullptr);
  // Records how the job has ended. Does nothing where Open has not succeeded. Errors: kAborted,
  // kResourceExhausted, kUnavailable
  absl::Status End(const JobOutcome& outcome);
  // kAborted: another controller has taken over.
  absl::Status Look();

  // Lists the checkpoints, oldest first: by generation, then step, then name. A checkpoint is whole
  // (status OK) if its manifest can be read and every file it names has its size. A folder without
  // a manifest is no checkpoint. Errors: kNotFound (no such directory), kUnavailable
  absl::StatusOr<std::vector<ListedCheckpoint>> List() const;
  // The last checkpoint of List(), or its error if it is not whole; nullopt: there is none.
  absl::StatusOr<std::optional<CheckpointManifest>> Newest() const;
  // Reads the manifest in the folder `name`, and no other file. `generation` must have made it; 0:
  // any may have. Errors: kInvalidArgument (no checkpoint's name), kNotFound (also where another
  // generation's checkpoint has replaced it), kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<CheckpointManifest> Load(absl::string_view name, uint64_t generation = 0) const;
  // The newest generation that has any file. Errors: kUnavailable
  absl::StatusOr<uint64_t> NewestGeneration() const;
  // Checks that every file of the manifest exists with its size. Errors: kDataLoss, kUnavailable
  absl::Status CheckFiles(const CheckpointManifest& manifest) const;
  // The same, and reads every byte of the files that `scan` does not know yet. Errors: kDataLoss,
  // kUnavailable, those of scan->on_progress
  absl::Status CheckBytes(const CheckpointManifest& manifest, ByteScan* scan) const;

  // Keeps the newest `keep` whole checkpoints, `kept`, and the base of the writer's generation
  // until that has made a checkpoint. Removes all others, with the files that no kept one names,
  // and the files of replaced and aborted checkpoints. Does not touch
  //   - files of the checkpoints `in_progress`,
  //   - files newer than the newest whole checkpoint, which may be being written,
  //   - damaged checkpoints' own folders, which the user may inspect,
  //   - files of generations after the writer's own,
  //   - files older than a checkpoint of another format version, which may need them.
  // Removes nothing where there is no whole checkpoint. A file that this store has found whole once
  // is taken as whole as long as its folder lists it. Servers may write and remove their own files
  // at the same time.
  //
  // REQUIRES: keep >= 1. Errors: kUnavailable. Even then every checkpoint that List() still has is
  // as it was.
  absl::StatusOr<Removal> RemoveUnneeded(uint32_t keep,
                                         const std::vector<CheckpointId>& in_progress,
                                         const std::optional<CheckpointId>& kept = std::nullopt);

  // Removes empty folders of checkpoints, which cuts leave that were called off. REQUIRES: no
  // server writes. Errors: kUnavailable
  absl::Status RemoveEmptyFolders();

  // The last record of HISTORY; nullopt: there is none. Errors: kDataLoss, kFailedPrecondition,
  // kUnavailable
  absl::StatusOr<std::optional<HistoryRecord>> LastRecord() const;
  // The last generation: from HISTORY or, without one, an earlier program's JOB_STATE. As above.
  absl::StatusOr<std::optional<JobState>> ReadJobState() const;

 private:
  struct Folder {
    std::string name;
    CheckpointFolder says;
    std::vector<std::string> files;  // All that lie in it; Folders() leaves them out.
  };
  struct FolderRemoval;
  class Keeping;
  using CheckOfFiles = absl::FunctionRef<absl::Status(const CheckpointManifest&)>;

  std::string PathOf(absl::string_view name) const;
  absl::StatusOr<std::vector<Folder>> Folders() const;
  absl::StatusOr<std::vector<Folder>> FoldersWithFiles() const;
  absl::StatusOr<uint64_t> GenerationOfDamaged(const Folder& folder) const;
  absl::StatusOr<std::function<bool(const CheckpointId&)>> Validity() const;
  absl::StatusOr<std::vector<ListedCheckpoint>> ListIn(
      const std::vector<Folder>& folders, const std::function<bool(const CheckpointId&)>& counts,
      CheckOfFiles check) const;
  absl::StatusOr<std::optional<ListedCheckpoint>> ListOne(
      const Folder& folder, const std::function<bool(const CheckpointId&)>& counts,
      CheckOfFiles check) const;
  absl::StatusOr<CheckpointManifest> LoadFile(const CheckpointFolder& says,
                                              const std::string& path) const;
  absl::Status CommitChecked(const CheckpointManifest& manifest, bool* may_exist);
  absl::StatusOr<std::string> PathOfManifest(const CheckpointId& id) const;
  absl::Status CheckIsNewest(const std::string& path, const CheckpointId& id) const;
  absl::Status Retire(const std::vector<ListedCheckpoint>& list,
                      const std::vector<FolderRemoval>& removals);
  absl::Status RemoveFiles(const FolderRemoval& removal, uint64_t* removed);

  Disk* const disk_;
  const std::string directory_;
  const std::shared_ptr<History> history_;
  const std::shared_ptr<CheckedFiles> checked_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
