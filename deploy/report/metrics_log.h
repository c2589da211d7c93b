// The events of a job: what a worker reports while it trains and what becomes of its processes,
// kept in metrics.jsonl; and the latest progress.
#ifndef THERMOCLINE_DEPLOY_REPORT_METRICS_LOG_H_
#define THERMOCLINE_DEPLOY_REPORT_METRICS_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/job/evaluations.h"
#include "deploy/report/appended_file.h"
#include "deploy/report/event_file.h"
#include "deploy/report/progress_bar.h"

namespace thermocline {

// What the end of a metrics file says.
struct MetricsTail {
  std::optional<nlohmann::ordered_json> progress;  // The last line of it.
  // How the last launch ended; nullopt: one runs, or its launcher was killed.
  std::optional<nlohmann::ordered_json> end;
};
// Reads the file's last 256 KiB. All is nullopt if there is no such file.
MetricsTail ReadMetricsTail(const std::string& path);

// Why workers leave the GPUs of their hosts unused, gathered so that the console names each reason
// once, with the ranks it concerns.
//
// Not thread-safe.
class DeviceWarnings {
 public:
  struct Warning {
    std::string text;
    std::vector<uint32_t> ranks;  // ascending
  };

  // Keeps a worker's report of its device; empty: nothing is unusual. May be repeated.
  void Set(uint32_t rank, const std::string& text) { of_rank_[rank] = text; }
  // When `num_ranks` workers have reported: the warnings that no earlier call returned.
  std::vector<Warning> Take(size_t num_ranks);

 private:
  std::map<uint32_t, std::string> of_rank_;
  std::set<std::string> taken_;
};

// "worker 0: TEXT", "workers 0, 2: TEXT".
std::string DescribeWarning(const DeviceWarnings::Warning& warning);

// Not thread-safe. The only writer of the file.
class MetricsLog {
 public:
  // Errors: kUnavailable (the file can't be made; names it).
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Create(const std::string& path);

  // Takes what came from the worker's pipe; lines may come in pieces. Each complete line that is a
  // JSON object is appended to the file with "wall_s", `elapsed` of the job so far, but for changes
  // between hot and cold batches, of which the reporter writes what became of them; others are
  // counted.
  void Append(absl::string_view data, absl::Duration elapsed);

  // Another worker reports from now on: drops the unfinished line of the last one.
  void DropPartialLine() {
    partial_.clear();
    progress_.phase.reset();
  }
  // Every line goes to `events`, too, from now on.
  void AlsoWriteTo(std::unique_ptr<EventFile> events) { events_ = std::move(events); }
  // The same of a function.
  void AlsoTell(std::function<void(const nlohmann::ordered_json&)> reader) {
    reader_ = std::move(reader);
  }
  // Appends an event of the launcher's own, an object with "event".
  void AppendEvent(nlohmann::ordered_json event, absl::Duration elapsed);

  // The evaluations and changes of steps that came since the last call.
  std::vector<EvaluationReport> TakeEvaluations() { return std::exchange(evaluations_, {}); }

  // The step in which a worker's script failed, if such a line came since the last call.
  std::optional<Step> TakeScriptFailure() { return std::exchange(script_failed_at_, {}); }
  // The last step of a worker that waits for the end of its script, if such a line came.
  std::optional<Step> TakeTrained() { return std::exchange(trained_, {}); }

  const Progress& progress() const { return progress_; }
  // How many lines changed progress(): "progress" lines, and "phase" lines, of which the file keeps
  // the first and the last of a phase.
  uint64_t progress_events() const { return progress_events_; }
  uint64_t phase_events() const { return phase_events_; }
  uint64_t bad_lines() const { return bad_lines_; }
  // The texts of the "warning" lines since the last call, for the console; among them, once until a
  // line is written again, why none can be.
  std::vector<std::string> TakeWarnings() { return std::exchange(warnings_, {}); }

 private:
  explicit MetricsLog(std::unique_ptr<AppendedFile> file) : file_(std::move(file)) {}

  void Note(const absl::Status& written, bool* fails);
  void WriteLine(nlohmann::ordered_json* json, absl::Duration elapsed);
  void TakeLine(absl::string_view line, absl::Duration elapsed);
  // Whether the line is one to keep: it is more than a change between hot and cold batches.
  bool TakeEvaluation(const nlohmann::ordered_json& json);
  // Whether the line of the phase is one to keep.
  bool TakePhase(const nlohmann::ordered_json& json);

  const std::unique_ptr<AppendedFile> file_;
  std::unique_ptr<EventFile> events_;  // null: none
  std::function<void(const nlohmann::ordered_json&)> reader_;
  bool file_fails_ = false, events_fail_ = false;
  std::string partial_;  // a line that hasn't ended yet
  Progress progress_;
  std::vector<EvaluationReport> evaluations_;
  std::optional<Step> script_failed_at_, trained_;
  uint64_t progress_events_ = 0;
  uint64_t phase_events_ = 0;
  uint64_t bad_lines_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_METRICS_LOG_H_
