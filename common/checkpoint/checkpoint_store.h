// A directory of checkpoints: which exist, which are whole, and which may be removed.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/history.h"
#include "common/checkpoint/listed_checkpoint.h"
#include "common/checkpoint/listed_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct Removal {
  uint64_t files = 0;  // The number of files removed.
  // Why others stayed that no checkpoint needs: one of another format version may. "": none did.
  std::string held_back;
};

// For HISTORY's nonces: from the operating system.
std::function<uint64_t()> RandomNonces();

// Several readers. A writer (a job's controller) begins with Open; of several writers the last one
// that did so writes (history.h). Copies share what a writer knows. Thread-safe.
class CheckpointStore {
 public:
  // `disk` outlives it. `threads`: that look for a checkpoint's files at the same time.
  CheckpointStore(Disk* disk, std::string directory,
                  std::function<uint64_t()> nonces = RandomNonces(), int threads = 1)
      : disk_(disk),
        directory_(std::move(directory)),
        history_(std::make_shared<History>(disk, directory_, std::move(nonces))),
        checked_(std::make_shared<CheckedFiles>(threads)) {}

  const std::string& directory() const { return directory_; }

  // Makes the directory, and those above it, where they are missing. Errors: kUnavailable
  absl::Status Prepare();

  // Begins a generation. When it returns, that is on the medium, and so is the manifest of the base
  // that it names. `after`: for the first one, the number of the record (LastRecord) by which its
  // base was chosen; 0: there was none. Errors: kAborted (another controller writes here; so do all
  // other calls of this writer from then on), kNotFound (there is no folder of the base),
  // kFailedPrecondition (the file system has no links), kResourceExhausted, kUnavailable
  absl::Status Open(JobState state, uint64_t after);
  // When it returns, the checkpoint counts and survives any crash; one of the same step by an
  // earlier generation no longer does. May be repeated for the same checkpoint. A writer that has
  // not called Open writes a manifest alone, as earlier programs did. Opens only files that this
  // store has not found whole before.
  //
  // REQUIRES: CheckManifest(manifest) is OK.
  // Errors: kDataLoss (a file is missing or has another size: the servers write elsewhere?),
  // kAborted, kFailedPrecondition (a later generation has begun), kResourceExhausted, kUnavailable
  // (it may count or not where *may_exist is set)
  absl::Status Commit(const CheckpointManifest& manifest, bool* may_exist = nullptr);
  // Notes how the job has ended; nothing where Open has not succeeded. Errors: kAborted,
  // kResourceExhausted, kUnavailable
  absl::Status End(const JobOutcome& outcome);
  // kAborted: another controller has taken over.
  absl::Status Look();

  // Oldest first: by generation, then step, then name. A checkpoint is whole (status OK) if its
  // manifest can be read and every file it names has its size. Folders without a manifest are none.
  // Errors: kNotFound (no such directory), kUnavailable
  absl::StatusOr<std::vector<ListedCheckpoint>> List() const;
  // The last of List(); nullopt: there is none. Its error where it is not whole.
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

  // Removes all checkpoints but the newest `keep` whole ones, `kept`, and what the writer's
  // generation has begun with until it has made one, with all files that those don't name, and the
  // files of replaced and aborted checkpoints. Does not touch: files of those `in_progress`, files
  // behind the newest whole checkpoint (of later generations, or later steps of its generation:
  // they may be being written), damaged checkpoints' own folders (the user may inspect them), files
  // of generations after the writer's own, files older than a checkpoint of another format version
  // (it may need them). Removes nothing where there is no whole checkpoint. A file that this store
  // has once found whole is whole as long as its folder shows it. Servers may write and remove
  // their own files at the same time.
  //
  // REQUIRES: keep >= 1. Errors: kUnavailable; whatever was removed, every checkpoint that List()
  // still shows is as it was.
  absl::StatusOr<Removal> RemoveUnneeded(uint32_t keep,
                                         const std::vector<CheckpointId>& in_progress,
                                         const std::optional<CheckpointId>& kept = std::nullopt);

  // Removes the folders of checkpoints in which nothing lies: cuts that were called off. REQUIRES:
  // no server writes. Errors: kUnavailable
  absl::Status RemoveEmptyFolders();

  // The last decision; nullopt: there is none. Errors: kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<std::optional<HistoryRecord>> LastRecord() const;
  // The last generation: from HISTORY or, without one, an earlier program's JOB_STATE. As above.
  absl::StatusOr<std::optional<JobState>> ReadJobState() const;

 private:
  struct Folder {
    std::string name;
    CheckpointFolder says;
  };
  struct FolderRemoval;
  class Keeping;
  using CheckOfFiles = absl::FunctionRef<absl::Status(const CheckpointManifest&)>;

  std::string PathOf(absl::string_view name) const;
  absl::StatusOr<std::vector<Folder>> Folders() const;
  absl::StatusOr<uint64_t> GenerationOfDamaged(const Folder& folder) const;
  absl::StatusOr<std::function<bool(const CheckpointId&)>> Judgement() const;
  absl::StatusOr<std::vector<ListedCheckpoint>> ListWith(CheckOfFiles check) const;
  absl::StatusOr<std::optional<ListedCheckpoint>> ListOne(
      const Folder& folder, const std::function<bool(const CheckpointId&)>& counts,
      CheckOfFiles check) const;
  absl::StatusOr<CheckpointManifest> LoadFile(const CheckpointFolder& says,
                                              const std::string& path) const;
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
