// HISTORY: the decisions of a job's controllers, in order, each in a small file:
//
//   DIRECTORY/HISTORY/000000001   OPEN: generation 1 begins, with no checkpoint
//   DIRECTORY/HISTORY/000000002   COMMIT: the checkpoint of step 999 counts
//   DIRECTORY/HISTORY/000000003   COMMIT: ...; that of step 499 is retired
//   DIRECTORY/HISTORY/000000004   OUTCOME: trained
//
// A record is written under another name, synced, and linked under the next number: of several
// controllers that try, one succeeds, and the others see whose record is there. Whether a number is
// taken is never judged by looking: a file system over the network may show an old folder. A
// controller that finds another's record decides nothing any more, so a controller that paused
// neither commits into a past that was left, nor retires what another has begun with.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_HISTORY_H_
#define THERMOCLINE_COMMON_CHECKPOINT_HISTORY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/file_frame.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

inline constexpr char kHistoryName[] = "HISTORY";
inline constexpr FrameFormat kHistoryFormat = {"TclnHist", kCheckpointFormatVersion};

// Thread-safe.
class History {
 public:
  // `disk` outlives the history. `directory` is that of the checkpoints. `random` makes nonces.
  History(Disk* disk, const std::string& directory, std::function<uint64_t()> random);

  // The last record, from any controller; nullopt: there is none. Errors: kDataLoss,
  // kFailedPrecondition (another format version), kUnavailable
  absl::StatusOr<std::optional<HistoryRecord>> Last() const;

  // For one controller
  // ----------------------------------------------------------------------------------------------
  // Each of these appends a record. Errors: kAborted (another controller has appended one since;
  // all later calls return kAborted, too), kUnavailable (where *may_exist is set, the record may
  // have been appended or not), and others. Unless *may_exist is set, no record was appended.

  // Begins a generation. For the controller's first one, `after` is the number of the last record
  // that it knows (0: of none); kAborted where there is a later one. `existing`: the valid
  // checkpoints where there is no record yet. Errors: also kFailedPrecondition (the file system has
  // no links)
  absl::Status Open(const JobState& state, uint64_t after,
                    const std::vector<CheckpointId>& existing);
  // A checkpoint is valid, and no longer those of the same step by earlier generations.
  // REQUIRES: is_open()
  absl::Status Commit(const CheckpointId& id, bool* may_exist);
  absl::Status Retire(const std::vector<CheckpointId>& ids);
  absl::Status End(const JobOutcome& outcome);
  // kAborted: another controller has appended a record. Where the file system shows a folder as it
  // was before, this is seen late.
  absl::Status Look();

  bool is_open() const;  // Whether this controller has begun a generation.
  // The last record that this controller knows. REQUIRES: is_open()
  HistoryRecord known() const;

 private:
  using Edit = std::function<void(HistoryRecord*)>;

  std::string PathOf(uint64_t number) const;
  absl::StatusOr<HistoryRecord> Read(uint64_t number) const;
  absl::Status TestLinks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteTemporary(const std::string& bytes, const std::string& path);
  absl::Status Append(const Edit& edit, bool* may_exist) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> TryAppend(const HistoryRecord& record, bool* may_exist)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Adopt(const HistoryRecord& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t last_number() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return last_.has_value() ? last_->number() : 0;
  }
  std::string NewNonce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Disk* const disk_;
  const std::string directory_, folder_;
  mutable absl::Mutex mutex_;
  const std::function<uint64_t()> random_ ABSL_GUARDED_BY(mutex_);
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<HistoryRecord> last_ ABSL_GUARDED_BY(mutex_);  // The last one known.
  std::set<std::string> own_ ABSL_GUARDED_BY(mutex_);  // Nonces of this controller's records.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // kAborted: another controller has taken over.
};

// Whether the checkpoint is valid by the record's list.
bool Counts(const HistoryRecord& record, const CheckpointId& id);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_HISTORY_H_
