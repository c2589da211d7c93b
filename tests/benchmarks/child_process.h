// A program that a benchmark talks to: started, found by its port file, killed at the end.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_CHILD_PROCESS_H_
#define THERMOCLINE_TESTS_BENCHMARKS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace thermocline {

// A folder of its own, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ChildProcess {
 public:
  // Runs arguments[0], looked for on PATH; it dies with this process. Its stdout goes to
  // `log_path`.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& arguments, const std::string& log_path);
  ~ChildProcess();  // SIGKILL

  // Waits until the child has made `path` and returns its first line.
  // Errors: kUnavailable (the child has ended), kDeadlineExceeded.
  absl::StatusOr<std::string> WaitForFile(const std::string& path, absl::Duration timeout);

  // User and system time of the child so far.
  double CpuSeconds() const;

 private:
  ChildProcess(pid_t pid, std::string name) : pid_(pid), name_(std::move(name)) {}
  pid_t pid_;
  std::string name_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_CHILD_PROCESS_H_
