// How other programs ask a running launcher for a checkpoint, or to end: with files in its run
// directory, which they may see from another host.
//
//   checkpoint-<id>.request made by the client; empty. An id begins with the client's process id
//                             and host: "4711-h1-..."
//   checkpoint-<id>.answer    {"checkpoint": "step-000000999"} or {"error": "..."}, made by the
//                             launcher, which then removes the request
//   stop.request              made by the client; empty. It stays: the job is not to start again
//                             before its user wants it
#ifndef THERMOCLINE_DEPLOY_RUNNER_CHECKPOINT_REQUESTS_H_
#define THERMOCLINE_DEPLOY_RUNNER_CHECKPOINT_REQUESTS_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace thermocline {

// The launcher's side. Not thread-safe.
class CheckpointRequests {
 public:
  explicit CheckpointRequests(std::string run_directory)
      : run_directory_(std::move(run_directory)) {}

  // The ids of requests that have come since the call before. Removes requests of clients that have
  // died.
  std::vector<std::string> TakeNew();
  // Ignores an answer that can't be written: the client's wait times out.
  void Answer(const std::string& id, const absl::StatusOr<std::string>& checkpoint);
  // Answers all requests, taken or not.
  void RefuseAll(const absl::Status& why);
  // Whether the job is asked to end.
  bool IsStopRequested() const;

 private:
  const std::string run_directory_;
  std::set<std::string> taken_;
};

// Asks the launcher of `run_directory` and waits for the name of the checkpoint. Leaves no file.
// Calls `stopped` now and then; true ends the wait. Errors: kFailedPrecondition (no launcher runs
// there), kDeadlineExceeded, kCancelled (`stopped`), kAborted (what the launcher says),
// kUnavailable (files can't be written).
absl::StatusOr<std::string> AskForCheckpoint(const std::string& run_directory,
                                             absl::Duration timeout,
                                             const std::function<bool()>& stopped);

// Asks the launcher of `run_directory` to end the job. Errors: kUnavailable (names the file).
absl::Status AskToStop(const std::string& run_directory);
// The job may start again. Does nothing where it was not asked to end.
void WithdrawStop(const std::string& run_directory);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_CHECKPOINT_REQUESTS_H_
