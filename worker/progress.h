// What a worker tells about itself while it runs: JSON lines for the controller, stats for
// everybody.
#ifndef THERMOCLINE_WORKER_PROGRESS_H_
#define THERMOCLINE_WORKER_PROGRESS_H_

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/parameter_server.pb.h"
#include "worker/evaluation.h"
#include "worker/sparse/cached_source.h"
#include "worker/sparse/ps_session.h"
#include "worker/sparse/step_pipeline.h"
#include "worker/trainer.h"

namespace thermocline {

// Thread-safe.
class WorkerProgress {
 public:
  // Lines go to `fd`; none where it is negative.
  WorkerProgress(std::string job_id, WorkerRank rank, int fd);

  // Whose figures the stats show from now on; they outlive the progress, or detach.
  struct Watched {
    const StepPipeline* pipeline = nullptr;
    const Trainer* trainer = nullptr;
    const PsSession* session = nullptr;
    const CachedSource* cache = nullptr;
    std::string device;
    bool lags = false;  // the device behind the host
  };
  void Watch(Watched watched);

  // Writes a "progress" line; rates and shares are of the window since the last one.
  void OnReport(const TrainerReport& report);
  // Writes an "eval" line. What it took doesn't count for the rate of the window that is open.
  void OnEvaluation(const EvaluationResult& result, const EvaluationPlace& place,
                    absl::Duration taken);

  WorkerStats Stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  void WriteLine(const std::string& line) const;
  std::vector<StageStats> Stages() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What has been counted so far; a window is the difference of two.
  struct Totals {
    int64_t steps = 0;
    double wait_s = 0;
    PsSessionStats session;
    CacheCounts cache;
  };
  Totals TotalsNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AddWindow(double seconds, nlohmann::json* line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string job_id_;
  const WorkerRank rank_;
  const int fd_;

  mutable absl::Mutex mutex_;
  Watched watched_ ABSL_GUARDED_BY(mutex_);
  Totals window_begin_ ABSL_GUARDED_BY(mutex_);
  TrainerReport report_ ABSL_GUARDED_BY(mutex_);
  double samples_per_s_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point window_start_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PROGRESS_H_
