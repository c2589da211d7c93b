// A directory of checkpoints: which there are, which are whole, and what may go.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
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
  std::string name;
  CheckpointId id;
  // kDataLoss: damaged (file and reason); kFailedPrecondition: another format version;
  // kUnavailable: the disk.
  absl::Status status;
  CheckpointManifest manifest;  // Where the manifest could be read.
};

// A reading of checkpoints' files, of each file once, although checkpoints share them.
struct ByteScan {
  // Called as a call of CheckBytes goes on: how many bytes it has read, of how many that it will
  // read. An error ends it with that error.
  std::function<absl::Status(uint64_t done, uint64_t total)> on_progress;
  std::map<std::string, absl::Status> known;  // What was found of each file, by its path.
};

struct Removal {
  uint64_t files = 0;  // So many went.
  // Why others did not, that are not needed otherwise: a checkpoint of another format version may
  // need them. "": none stayed for that.
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

  // From now on the checkpoint exists, through any crash. Again for the same manifest: OK.
  //
  // REQUIRES: CheckManifest(manifest) is OK.
  // Errors: kDataLoss (a file is missing or has another size: the servers write elsewhere?),
  // kResourceExhausted, kUnavailable; it may or may not exist then.
  absl::Status Commit(const CheckpointManifest& manifest);

  // Oldest first: by generation, then step. A checkpoint is whole (status OK) if its manifest can
  // be read and every file it names has its size. Folders without a manifest are none. Errors:
  // kNotFound (no such directory), kUnavailable
  absl::StatusOr<std::vector<ListedCheckpoint>> List() const;
  // The last of List(); nullopt: there is none. Where it isn't whole, its error: what to go on with
  // instead is for people to say.
  absl::StatusOr<std::optional<CheckpointManifest>> Newest() const;
  // Reads the manifest; no other file. Errors: kInvalidArgument (no checkpoint's name), kNotFound,
  // kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<CheckpointManifest> Load(absl::string_view name) const;
  // Whether every file that it names is there with its size. Errors: kDataLoss, kUnavailable
  absl::Status CheckFiles(const CheckpointManifest& manifest) const;
  // The same, and reads every byte of those files that `scan` does not know yet. Errors: kDataLoss,
  // kUnavailable, those of scan->on_progress
  absl::Status CheckBytes(const CheckpointManifest& manifest, ByteScan* scan) const;

  // Removes all checkpoints but the newest `keep` whole ones and the one called `kept`, with all
  // files that those don't name,
  // and what aborted ones left. Not touched: the folders named in `in_progress`, cuts behind the
  // newest whole checkpoint (later generations, or later steps of its generation: they may be being
  // written), damaged checkpoints' own folders (for people to look at), what is older than a
  // checkpoint of another format version (it may need it). Without a whole checkpoint nothing is.
  // Servers may remove files of theirs at the same time.
  //
  // REQUIRES: keep >= 1. Errors: kUnavailable; whatever was removed, every checkpoint that List()
  // still shows is as it was.
  absl::StatusOr<Removal> RemoveUnneeded(uint32_t keep, const std::vector<std::string>& in_progress,
                                         const std::string& kept = "");

  // Removes the folders of checkpoints in which nothing lies: cuts that were called off. REQUIRES:
  // no server writes. Errors: kUnavailable
  absl::Status RemoveEmptyFolders();

  // nullopt: there is none. Errors: kDataLoss, kFailedPrecondition, kUnavailable
  absl::StatusOr<std::optional<JobState>> ReadJobState() const;
  // On the medium when it returns, as is the checkpoint that it names as a base: a launcher that
  // died may have left it there without that. format_version is filled in.
  // Errors: kNotFound (there is no folder of the base), kResourceExhausted, kUnavailable
  absl::Status WriteJobState(JobState state);

 private:
  std::string PathOf(absl::string_view name) const;
  absl::StatusOr<std::vector<CheckpointId>> Folders() const;
  absl::Status RemoveManifest(const std::string& name, uint64_t* removed);
  absl::Status RemoveFiles(const std::string& name, const std::set<std::string>& needed,
                           uint64_t* removed);

  Disk* const disk_;
  const std::string directory_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_STORE_H_
