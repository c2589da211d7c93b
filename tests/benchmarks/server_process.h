// A program that a benchmark talks to. It is started, found by its port file, and killed at the
// end.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_SERVER_PROCESS_H_
#define THERMOCLINE_TESTS_BENCHMARKS_SERVER_PROCESS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/child_process.h"

namespace thermocline {

// A new folder, which the destructor removes with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ServerProcess {
 public:
  // Runs arguments[0]; a bare name is looked for on PATH. The program dies with this process. Its
  // output goes to `log_path`. REQUIRES: called on the main thread.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(
      const std::vector<std::string>& arguments, const std::string& log_path);

  // Waits until the child has made `path` and returns its first line.
  // Errors: kUnavailable (the child has ended), kDeadlineExceeded.
  absl::StatusOr<std::string> WaitForFile(const std::string& path, absl::Duration timeout);

  // User and system time of the child so far.
  double CpuSeconds() const;

 private:
  explicit ServerProcess(ChildProcess child) : child_(std::move(child)) {}

  ChildProcess child_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_SERVER_PROCESS_H_
