// How far a job is: one line that redraws itself on a terminal, plain lines now and then elsewhere.
#ifndef THERMOCLINE_DEPLOY_REPORT_PROGRESS_BAR_H_
#define THERMOCLINE_DEPLOY_REPORT_PROGRESS_BAR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/report/worker_totals.h"

namespace thermocline {

// What the reporting worker does between steps: "counting lines", "evaluating".
struct PhaseProgress {
  std::string name;
  uint64_t done = 0;
  uint64_t total = 0;  // 0: not known
  std::string unit;    // "bytes", "samples"
  double seconds = 0;  // since it began
  bool is_total_estimated = false;
};

// The progress of a job with hot and cold batches.
struct HotProgress {
  bool is_hot = false;  // Whether hot batches are trained now.
  double rate = 0;      // In percent, as Fae.schedule has it.
  uint64_t changes = 0;
};

struct Progress {
  uint64_t step = 0;        // So many are trained, ...
  uint64_t first_step = 0;  // ... these before this launch.
  uint64_t samples = 0;
  double samples_per_s = 0;
  std::optional<double> fraction;  // of the job's steps that are done, in [0, 1]
  std::optional<double> loss;      // mean per sample since the report before
  std::optional<double> hit_rate;  // of the reporting worker's cache or that of all, in [0, 1]
  std::optional<HotProgress> hot;
  // If workers exchange rows: the worker that the others wait for the most, with the share of their
  // time.
  std::optional<SlowestWorker> slowest;
  std::optional<double> auc;  // of the last batch, as far as the reporting worker computed it
  std::vector<std::pair<std::string, std::optional<double>>> task_aucs;  // of several tasks
  std::optional<PhaseProgress> phase;  // now under way; the figures above are of earlier steps
};

// "[=====>    ]  45%  120 steps  ...  0:12 left" without a line end; nullopt: nothing is said of
// the time left. In a phase: "[=====>    ]  45%  counting lines  1.2 GiB of 2.7 GiB  0:12 left".
std::string RenderProgress(const Progress& progress, std::optional<absl::Duration> left);

// Not thread-safe.
class ProgressBar {
 public:
  // Writes the whole text, or drops it and returns false if the reader is not ready: a job does not
  // wait for its progress bar.
  using Sink = std::function<bool(absl::string_view text)>;

  // Draws on `out`, as on a terminal if `is_terminal`.
  ProgressBar(Sink out, bool is_terminal) : out_(std::move(out)), is_terminal_(is_terminal) {}
  // Removes the line that it has drawn.
  ~ProgressBar() { Clear(); }

  // `elapsed`: since the job began.
  void Update(const Progress& progress, absl::Duration elapsed);
  // Removes the line, so that other text can be written; the next Update draws it again.
  void Clear();

 private:
  // The shortest time between two drawings.
  absl::Duration Period(const Progress& progress);
  std::optional<absl::Duration> TimeLeft(const Progress& progress, absl::Duration elapsed);

  const Sink out_;
  const bool is_terminal_;
  absl::Duration last_drawn_ = -absl::InfiniteDuration();
  bool line_stands_ = false;
  std::string waits_for_;  // The phase drawn last, if its total is not known; else "".
  absl::Duration wait_period_;
  // The time left is judged by what was done since then. nullopt: no step was seen yet.
  std::optional<double> first_fraction_;
  absl::Duration first_elapsed_;
  uint64_t last_step_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_PROGRESS_BAR_H_
