// The data files of a worker as they were when it began: what is read later has to be the same.
#ifndef THERMOCLINE_WORKER_DATA_PINNED_FILES_H_
#define THERMOCLINE_WORKER_DATA_PINNED_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/data/data_identity.h"
#include "proto/job.pb.h"

namespace thermocline {

// Between two looks at a file that is being read, so many of its bytes are.
inline constexpr int64_t kPinnedFileLookBytes = 8 << 20;

// Thread-safe.
class PinnedFiles {
 public:
  // Looks at all of `files` (Job.data_files), ends included. `store`: of those that are objects.
  // Errors: kFailedPrecondition (one is not the file that the job began with: says what differs),
  // those of IdentifyFile().
  static absl::StatusOr<std::shared_ptr<PinnedFiles>> Open(const DataFiles& files,
                                                           std::shared_ptr<ObjectStore> store);

  // Whether `path` is still what it was at the first look, by its size and time, or by its tag in
  // the store; a file that is not among those of Open() is looked at first here. To be called after
  // it is opened, while it is read, and at its end. Errors: kFailedPrecondition (names the file),
  // kUnavailable. A file that is gone is none: what is open can be read.
  absl::Status Check(const std::string& path);

 private:
  explicit PinnedFiles(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  const std::shared_ptr<ObjectStore> store_;
  absl::Mutex mutex_;
  std::map<std::string, FileIdentity> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_PINNED_FILES_H_
