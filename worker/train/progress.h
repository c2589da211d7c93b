// What a worker reports while it runs: JSON lines for the launcher, stats for all callers.
#ifndef THERMOCLINE_WORKER_TRAIN_PROGRESS_H_
#define THERMOCLINE_WORKER_TRAIN_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/timing.h"
#include "kernels/device.h"
#include "proto/parameter_server.pb.h"
#include "worker/data/text/line_stream.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/row_slabs.h"
#include "worker/rows/step_pipeline.h"
#include "worker/session/ps_session.h"
#include "worker/train/evaluation.h"
#include "worker/train/trainer.h"

namespace thermocline {

// Thread-safe.
class WorkerProgress {
 public:
  // Lines go to `fd`; none where it is negative. A phase has one each `phase_period` while it gets
  // further, none if it takes less.
  WorkerProgress(std::string job_id, WorkerRank rank, int fd,
                 absl::Duration phase_period = absl::Seconds(1));

  // The parts whose figures the stats show. They outlive the progress, or Watch({}) ends that.
  struct Watched {
    const StepPipeline* pipeline = nullptr;
    const PipelineTimes* pipeline_times = nullptr;
    const Trainer* trainer = nullptr;
    const PsSession* session = nullptr;
    const RowSlabs* cache = nullptr;
    // The worker holds the hot rows of a job (OnBatches), so that the rows of a step are all held
    // or all pulled: `cache` has no figures to show.
    bool has_hot_rows = false;
    std::string device;
    std::string device_warning;  // WorkerDevice::warning
    const Device* compute = nullptr;
    bool is_asynchronous = false;  // ModelStep::is_asynchronous
    const Exchange* exchange = nullptr;
  };
  void Watch(Watched watched);

  // The worker begins something: "training", "evaluating". (It begins with "starting".)
  void Enter(absl::string_view phase);
  // While it lasts, a scan of the data stands before the phase that waits for it.
  void OnScan(absl::string_view what, const ScanProgress& scan);
  // The worker has waited so long for what may take a script long, such as its first step: it
  // imports its libraries, or compiles its model. is_over: the wait has ended.
  void OnScriptWait(absl::string_view what, absl::Duration elapsed, bool is_over);
  // The script has failed in a step.
  void OnScriptFailure(Step step);
  // All steps up to `last` are trained and pushed, and the script needs nothing more. Its end may
  // take long; the launcher has the last checkpoint made meanwhile.
  void OnTrained(Step last);
  // The phase has read or scored `samples` of `total` samples; a negative total: it is not known.
  void OnSamples(int64_t samples, int64_t total);

  // From now on a job with hot and cold batches (Job.fae) stands so.
  void OnBatches(const HotStats& hot);

  // Writes a "progress" line; rates and shares are of the window since the last one.
  void OnReport(const TrainerReport& report);
  // Writes an "eval" line, with what the evaluation took: time, which doesn't count for the rate of
  // the window that is open, and the bytes pulled since its phase was entered. scoring: at the same
  // step; null: there was none.
  void OnEvaluation(const EvaluationResult& result, const EvaluationPlace& place,
                    const OrderScoring* scoring, absl::Duration taken);
  // The same where held-out rows are scored for the order of the data alone.
  void OnScoring(const EvaluationResult& result, const EvaluationPlace& place,
                 const OrderScoring& scoring);
  // Reports a warning to the user: in the log, and with a "warning" line on the console.
  void Warn(const std::string& text) const;

  // Where the parts are not watched any more, as they were last.
  WorkerStats Stats() const;
  // The last step that every server has acknowledged; kNoStep while there is no session.
  Step AckedThrough() const;

 private:
  using Clock = std::chrono::steady_clock;

  // What is done now.
  struct Phase {
    std::string name;
    uint64_t done = 0;
    uint64_t total = 0;  // 0: not known
    const char* unit = "";
    absl::Duration start;
    std::optional<absl::Duration> written;  // When its last line was.
  };
  Phase Begin(absl::string_view name, const char* unit) const;
  // Records how far the phase is. Returns a line if one is due, else "".
  std::string Advance(uint64_t done, int64_t total, Phase* phase)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records the progress of `wait`, which the phase waits for. Returns a line if one is due, else
  // "".
  std::string AdvanceWait(int64_t done, int64_t total, bool is_over, std::optional<Phase>* wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The last line of a phase that has written one, else "".
  std::string End(const Phase& phase) const;
  std::string LineOf(const Phase& phase, bool ended) const;

  // Writes nothing for "". Not under mutex_: the reader may be slow.
  void WriteLine(const std::string& line) const ABSL_LOCKS_EXCLUDED(mutex_, write_mutex_);
  // The device's new fallbacks: what it does in another way than it was asked to.
  std::vector<std::string> NewFallbacks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<StageStats> Stages() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What has been counted so far; a window is the difference of two.
  struct Totals {
    int64_t steps = 0;
    double wait_s = 0;
    PsSessionStats session;
    CopiedBytes copied;
    CacheCounts cache;
    std::vector<StageStats> stages;
  };
  uint64_t BytesPulled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return watched_.session == nullptr ? 0 : watched_.session->stats().bytes_pulled;
  }
  Totals TotalsNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  WorkerStats StatsOfParts() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AddWindow(double seconds, nlohmann::json* line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool has_cache() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return watched_.cache != nullptr && !watched_.has_hot_rows;
  }
  void WriteEvaluation(nlohmann::json line, const OrderScoring* scoring, absl::Duration taken);

  const std::string job_id_;
  const WorkerRank rank_;
  const int fd_;
  const absl::Duration phase_period_;
  const Stopwatch watch_;

  mutable absl::Mutex write_mutex_;  // Lines are written whole.

  mutable absl::Mutex mutex_;
  std::optional<HotStats> hot_ ABSL_GUARDED_BY(mutex_);
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Begin("starting", "");
  // The phase waits for these.
  std::optional<Phase> scan_ ABSL_GUARDED_BY(mutex_);
  std::optional<Phase> script_wait_ ABSL_GUARDED_BY(mutex_);
  uint64_t advances_ ABSL_GUARDED_BY(mutex_) = 0;
  Watched watched_ ABSL_GUARDED_BY(mutex_);
  std::optional<WorkerStats> last_stats_ ABSL_GUARDED_BY(mutex_);  // Once watching has ended.
  Totals window_begin_ ABSL_GUARDED_BY(mutex_);
  TrainerReport report_ ABSL_GUARDED_BY(mutex_);
  DeviceFallbacks warned_of_ ABSL_GUARDED_BY(mutex_);
  uint64_t pulled_before_phase_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes
  double samples_per_s_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point window_start_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_PROGRESS_H_
