// The trace of one process: records its part of a job's steps, and writes a file of Chrome's trace
// format, TRACE_DIRECTORY/worker-0.json, from which the launcher makes the trace of the whole job.
//
// Beside "traceEvents", whose times are microseconds from `base_ns`, the file has in "otherData"
// who recorded it and by which clock (docs/monitoring.md).
#ifndef THERMOCLINE_COMMON_TRACE_PROCESS_TRACE_H_
#define THERMOCLINE_COMMON_TRACE_PROCESS_TRACE_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/trace.h"

namespace thermocline {

// Where processes write their files, in the run directory.
inline constexpr char kTraceFolder[] = "trace";

struct ProcessTraceOptions {
  std::string directory;  // It is made where it is missing.
  std::string job;
  std::string role;  // "worker", "server"
  uint32_t index = 0;
  uint64_t generation = 0;
  Step first, last;
};

// Says which clock MonotonicNanos() reads here: processes for which this text is the same and not
// empty have the same clock. It consists of the boot's id and the time namespace.
std::string ClockName();

// "worker-0.json": the file that a process writes. role: "worker", "server".
std::string TraceFileName(const std::string& role, uint32_t index);

// The text of a process's file. Errors: none.
std::string TraceFileText(const ProcessTraceOptions& options, const RecordedTrace& recorded);

// Writes the process's file, whole or not at all. A file of an earlier generation is replaced.
// Errors: kUnavailable (names the file).
absl::Status WriteTraceFile(const ProcessTraceOptions& options, const RecordedTrace& recorded);

// Records from its construction on. The file is written when the last step is over (EndTraceOf), or
// when this object is destroyed. Errors of writing go to the process's log. At most one exists in a
// process.
class ProcessTrace {
 public:
  explicit ProcessTrace(ProcessTraceOptions options);
  ~ProcessTrace();

 private:
  void Run();

  const ProcessTraceOptions options_;
  absl::Mutex mutex_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Uses all above.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_TRACE_PROCESS_TRACE_H_
