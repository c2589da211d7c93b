// Where one run of a job leaves its files:
//   job.textproto        the job with every default filled in
//   servers.json         addresses of the processes, for `thermocline stats --run-dir`
//   server-N.log, worker-N.log
//   metrics.jsonl        one line an event of training (docs/operations.md)
//   worker-N.json        what each worker reported at its end, of its process
//   server_stats.json    the servers' stats at the end
//   summary.json         the result
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_RUN_DIRECTORY_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_RUN_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace thermocline {

class RunDirectory {
 public:
  // Makes `path`, or runs/<job_name>-<time> where it is empty. Nobody's files are overwritten: an
  // existing folder must be empty, but for a lock that a start which failed left.
  // Errors: kAlreadyExists, kPermissionDenied, kUnavailable; name the path.
  static absl::StatusOr<RunDirectory> Create(const std::string& path, const std::string& job_name,
                                             absl::Time now);

  // The folder of an earlier run. Errors: kNotFound (no folder; names it).
  static absl::StatusOr<RunDirectory> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;
  // Where checkpoints are unless the job says otherwise; absolute.
  std::string CheckpointDirectory() const;

  // Writes a file whole or not at all. Errors: kUnavailable (names the file).
  absl::Status Write(absl::string_view name, absl::string_view text) const;
  // Removes a file, or a folder with all that is in it; OK where there is none.
  // Errors: kUnavailable (names it).
  absl::Status Remove(absl::string_view name) const;

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_RUN_DIRECTORY_H_
