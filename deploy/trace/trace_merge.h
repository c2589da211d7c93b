// Makes RUN_DIR/trace.json of the files that the processes of a job leave in RUN_DIR/trace
// (common/trace/process_trace.h): Chrome's trace format, on the controller's clock.
#ifndef THERMOCLINE_DEPLOY_TRACE_TRACE_MERGE_H_
#define THERMOCLINE_DEPLOY_TRACE_TRACE_MERGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/trace/clock_offsets.h"
#include "proto/job.pb.h"

namespace thermocline {

// A trace has at most this many steps, and at most this many bytes: processes beyond are left out.
inline constexpr uint64_t kMaxTraceSteps = 1000;
inline constexpr uint64_t kMaxTraceBytes = uint64_t{1} << 30;

// "FIRST:LAST". Errors: kInvalidArgument (says what is wrong with it).
absl::StatusOr<Trace> ParseTrace(const std::string& text);
// Errors: kInvalidArgument (the steps are in the wrong order, or too many).
absl::Status CheckTrace(const Trace& trace);

struct TraceMergeOptions {
  std::string job;
  std::string run_dir;
  Trace steps;
  uint32_t workers = 0;
  uint32_t servers = 0;
  bool has_scripts = false;       // Whether each worker has a script, whose trace is there, too.
  uint64_t first_generation = 0;  // Files of earlier ones are of an earlier launch.
  std::string version;
  uint64_t max_bytes = kMaxTraceBytes;
};

struct MergedTrace {
  std::string path;  // RUN_DIR/trace.json; "": nothing was recorded, and nothing is written.
  uint64_t events = 0;
  std::vector<std::string> missing;   // "server 1", "server 2 (its file is damaged)"
  std::vector<std::string> warnings;  // Such as events that a process had no room for.
};

// Whether all processes have left their files, of this launch. It looks at each file's beginning.
bool HasAllTraces(const TraceMergeOptions& options);

// Writes trace.json of the files that are there, whole or not at all. clocks: of processes by name
// ("worker 0"); those on the controller's own machine need none. Errors: kUnavailable (the file
// can't be written; names it).
absl::StatusOr<MergedTrace> MergeTraces(const TraceMergeOptions& options,
                                        const ClockOffsets& clocks);

// What the console says about it.
std::string DescribeTrace(const TraceMergeOptions& options,
                          const absl::StatusOr<MergedTrace>& merged);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_TRACE_TRACE_MERGE_H_
