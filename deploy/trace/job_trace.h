// The controller's part of `train --trace`: it learns the clocks of the job's processes, and merges
// their files when all are there, or when the job has ended.
#ifndef THERMOCLINE_DEPLOY_TRACE_JOB_TRACE_H_
#define THERMOCLINE_DEPLOY_TRACE_JOB_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/task_queue.h"
#include "deploy/report/stats_table.h"
#include "deploy/trace/clock_offsets.h"
#include "deploy/trace/trace_merge.h"

namespace thermocline {

// Used by one thread.
class JobTrace {
 public:
  // tasks: merge while the job goes on; they have to have ended before this object is destroyed.
  JobTrace(TraceMergeOptions options, TaskRunner* tasks);

  // The generation goes on at `first`. Where it makes traced steps again, the files of those before
  // it no longer are all that there is to come.
  void BeginGeneration(uint64_t generation, Step first);
  void OnStatus(const std::vector<ServerReport>& servers, const std::vector<WorkerReport>& workers);
  // What the console says of a trace that was merged meanwhile, once; "": nothing.
  std::string TakeLine();
  // The job has ended, with all its processes, and the tasks have run: merges what is there, unless
  // all was before. Returns what the console says; "": nothing.
  std::string End();

 private:
  void MergeIfAllAreThere(uint64_t generation, const ClockOffsets& clocks);

  const TraceMergeOptions options_;
  TaskRunner* const tasks_;
  ClockOffsets clocks_;
  bool has_begun_ = false;
  absl::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // The last one that makes traced steps.
  bool is_looking_ ABSL_GUARDED_BY(mutex_) = false;  // A task of this object is under way.
  bool is_merged_ ABSL_GUARDED_BY(mutex_) = false;
  std::string line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_TRACE_JOB_TRACE_H_
