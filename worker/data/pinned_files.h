// Remembers the data files of a worker as they were when it began, and checks later that they still
// are the same.
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

// A reader checks a file again after every so many bytes that it has read of it.
inline constexpr int64_t kPinnedFileLookBytes = 8 << 20;

// Thread-safe.
class PinnedFiles {
 public:
  // Compares all of `files` (Job.data_files) with the files and objects that are there, by size and
  // by the checksums of both ends. `store` may be null if none of them is an object.
  // Errors: kFailedPrecondition (one is not the file that the job began with: says what differs),
  // IdentifyFile's.
  static absl::StatusOr<std::shared_ptr<PinnedFiles>> Open(const DataFiles& files,
                                                           std::shared_ptr<ObjectStore> store);

  // Checks that `path` is still what it was at the first look, by its size and time, or by its tag
  // in the store. For a file that is not among those of Open() the first call is the first look.
  // Readers call it after they have opened the file, while they read it, and at its end. A file
  // that is gone is no error, since an open file can still be read. Errors: kFailedPrecondition
  // (names the file), kUnavailable.
  absl::Status Check(const std::string& path);

 private:
  explicit PinnedFiles(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  const std::shared_ptr<ObjectStore> store_;
  absl::Mutex mutex_;
  std::map<std::string, FileIdentity> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_PINNED_FILES_H_
