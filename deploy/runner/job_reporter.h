// What users see of a job: its lines on the console, metrics.jsonl, summary.json and the files
// beside it.
#ifndef THERMOCLINE_DEPLOY_RUNNER_JOB_REPORTER_H_
#define THERMOCLINE_DEPLOY_RUNNER_JOB_REPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/timing.h"
#include "deploy/http/http_feed.h"
#include "deploy/job/generation.h"
#include "deploy/job/job_actions.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/progress_bar.h"
#include "deploy/report/stats_table.h"
#include "deploy/report/worker_totals.h"
#include "deploy/runner/host_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobResult {
  nlohmann::ordered_json summary;  // as in summary.json
  std::vector<ServerReport> servers;
  // Not OK: the job is trained to its end, and something is missing, as this says: the checkpoint
  // of the last step, the digest, or summary.json. The job has failed nevertheless.
  absl::Status shortfall;
};

// What the caller may show while a job runs; each may be empty.
struct JobObserver {
  std::function<void(const std::vector<std::string>& addresses)> on_servers_up;
  std::function<void(const Progress& progress)> on_progress;
  // A line that the user should read: a server was restarted, the job went back to a checkpoint, a
  // checkpoint was called off.
  std::function<void(const std::string& text)> on_notice;
  std::function<void()> on_training_done;
};

struct JobReporterOptions {
  GenerationStart start;
  bool is_resumed = false;
  bool writes_checkpoints = false;
  nlohmann::ordered_json hot_rows;  // As JobOptions has it.
  HttpFeed* http = nullptr;         // It gets each line of metrics.jsonl; null: there is none.
};

// Not thread-safe.
class JobReporter {
 public:
  // `job`, `directory` and `observer` must outlive it. Errors: those of MetricsLog::Create.
  static absl::StatusOr<std::unique_ptr<JobReporter>> Create(const Job& job,
                                                             const JobReporterOptions& options,
                                                             const RunDirectory& directory,
                                                             const JobObserver& observer);

  // Another generation begins: its job file is written.
  absl::Status OnOpen();
  // Lines of rank 0's metrics, maybe in pieces. Whether they say that training got further.
  bool OnMetrics(absl::string_view data);
  const MetricsLog& metrics() const { return *metrics_; }
  // A worker has a device; `warning` says why it leaves a GPU unused, if it does. May be repeated.
  void OnDevice(uint32_t rank, const std::string& warning);
  // The stats of workers: where all of several have got further, a line of what they did together.
  void OnWorkers(const std::vector<WorkerReport>& workers);
  // What the stats say about the job's hosts; `slow`: those that are slow now.
  void OnHosts(const HostWatch::Findings& findings, const std::vector<SlowHost>& slow);
  std::vector<EvaluationReport> TakeEvaluations() { return metrics_->TakeEvaluations(); }
  std::optional<Step> TakeScriptFailure() { return metrics_->TakeScriptFailure(); }
  std::optional<Step> TakeTrained() { return metrics_->TakeTrained(); }

  void Report(const action::Tell& tell) { Tell(tell.text); }
  void Report(const action::ReportServersUp& up);
  void Report(const action::ReportTrainingDone& done);
  void Report(const action::ReportStart& start);
  void Report(const action::ReportLimit& limit);
  void Report(const action::ReportRestart& restart);
  void Report(const action::ReportCheckpoint& checkpoint);
  void Report(const action::ReportEvaluation& evaluation);

  // Writes summary.json and the reports beside it; `workers`: their results, by rank. Errors: those
  // of writing the summary.
  absl::Status WriteResult(const action::WriteResult& result,
                           const std::vector<nlohmann::ordered_json>& workers);
  // The job has ended, with its last line. Where nothing was trained, the job file is again what it
  // was. Returns the result, where the job was trained to its end, or the status.
  absl::StatusOr<JobResult> OnEnd(const absl::Status& status);

 private:
  JobReporter(const Job& job, const JobReporterOptions& options, const RunDirectory& directory,
              const JobObserver& observer)
      : job_(job), options_(options), directory_(directory), observer_(observer) {}

  void Tell(const std::string& text);
  void Append(nlohmann::ordered_json event);
  void ShowProgress() const;
  absl::Status BeginEventFile(const std::string& job);
  std::string ReadJob() const;
  void ReportDeviceWarnings(size_t num_ranks);
  void TellOfCallOff(const CheckpointEvent& event);
  void ReportChange(const EvaluationEvent& event);
  void AddHistory(const action::WriteResult& result, nlohmann::ordered_json* summary) const;
  void WriteReports(const std::vector<nlohmann::ordered_json>& workers,
                    const std::vector<ServerReport>& servers);

  const Job& job_;
  const JobReporterOptions options_;
  const RunDirectory& directory_;
  const JobObserver& observer_;
  const Stopwatch watch_;
  std::unique_ptr<MetricsLog> metrics_;
  bool has_event_file_ = false;
  DeviceWarnings device_warnings_;
  std::optional<WorkerTotals> totals_;     // Totals of the generation at OnWorkers' last line,
  std::optional<WorkerTotals> lately_;     // and since the line before that.
  std::optional<std::string> job_before_;  // The job file of the run that is resumed.
  bool trained_ = false;
  double training_s_ = 0;
  uint32_t restarts_ = 0;  // How often servers were started again.
  uint32_t rollbacks_ = 0;
  uint64_t committed_ = 0;
  uint64_t called_off_ = 0;
  std::string last_checkpoint_;
  std::optional<double> rate_;          // The last rate of hot and cold batches that was reported.
  nlohmann::ordered_json evaluations_;  // As in the summary; null before the first.
  std::set<std::pair<std::string, std::string>> calls_off_told_;  // Checkpoints, and why.
  std::set<std::pair<std::string, ProcessRole>> slow_told_;       // Hosts.
  std::optional<JobResult> result_;  // The generation's result, once it is trained.
  bool has_summary_ = false;         // Whether summary.json has that result.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_JOB_REPORTER_H_
