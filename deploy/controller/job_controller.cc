#include "deploy/controller/job_controller.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/stopwatch.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/posix_disk.h"
#include "common/job/job_loader.h"
#include "deploy/controller/checkpoint_requests.h"
#include "deploy/controller/metrics_log.h"
#include "deploy/controller/rollback_policy.h"
#include "deploy/controller/sample_counter.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// How long processes may take to end by themselves.
constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::Duration kGraceAfterFailure = absl::Seconds(2);

std::string WhereItBegins(const EpochStart& start) {
  return start.base.empty() ? "the beginning" : absl::StrCat("step ", start.first_step().value());
}

class JobController {
 public:
  JobController(const Job& job, const JobOptions& options, const RunDirectory& directory,
                const JobObserver& observer, SignalWatch* signals)
      : job_(job),
        options_(options),
        directory_(directory),
        observer_(observer),
        signals_(signals),
        writes_checkpoints_(job.has_checkpoint() && !options.eval_only),
        store_(&disk_, job.checkpoint().directory()),
        samples_(job.train().batch_size()),
        restart_policy_(job.cluster().max_server_restarts(), writes_checkpoints_),
        rollback_budget_(job.checkpoint().max_rollbacks()),
        last_(options.start.base) {}

  absl::StatusOr<JobResult> Run() {
    ASSIGN_OR_RETURN(metrics_, MetricsLog::Create(directory_.File("metrics.jsonl")));
    absl::StatusOr<JobResult> result = RunEpochs();
    if (!result.ok()) RestoreJob();
    NoteEnd(result.status());
    CheckpointRequests(directory_.path())
        .RefuseAll(absl::AbortedError(writes_checkpoints_ ? "the job has ended"
                                                          : "the job has no checkpoint policy"));
    if (result.ok() || !collected_.has_value()) return result;
    collected_->shortfall = result.status();
    return *std::move(collected_);
  }

 private:
  absl::StatusOr<JobResult> RunEpochs() {
    EpochStart start = options_.start;
    samples_.Report(start.first_step().value(), start.base_samples);
    for (const std::string& notice : options_.notices) Tell(notice);
    if (options_.is_resumed) {
      Note("resume", start, absl::StrJoin(options_.notices, "; "));
      Tell(absl::StrCat("resuming at ", WhereItBegins(start), " (epoch ", start.epoch, ")"));
    }
    while (true) {
      RETURN_IF_ERROR(BeginEpoch(start));
      // After JOB_STATE: a job file tells that there is something to resume.
      RETURN_IF_ERROR(WriteJob());
      const EpochObserver observer = MakeEpochObserver();
      EpochOptions options;
      options.start = start;
      options.eval_only = options_.eval_only;
      if (writes_checkpoints_) options.checkpoints = &store_;
      if (writes_checkpoints_ && !start.base.empty()) {
        ASSIGN_OR_RETURN(const CheckpointManifest base, store_.Load(start.base));
        options.evaluations = base.evaluations();
      }
      collected_.reset();
      has_summary_ = false;
      EpochRun epoch(job_, options_.programs, directory_, options, observer, signals_);
      absl::StatusOr<JobResult> result = RunEpoch(&epoch, start);
      ReportDeviceWarnings(/*num_ranks=*/0);
      const std::string loss =
          result.ok() || absl::IsCancelled(result.status()) ? "" : epoch.Loss();
      epoch.Stop(result.ok() ? kGrace : kGraceAfterFailure);
      if (loss.empty() || !writes_checkpoints_) return result;
      if (!rollback_budget_.Spend(reached_)) {
        const uint32_t limit = job_.checkpoint().max_rollbacks();
        Tell(absl::StrCat(loss, "; not going back: checkpoint.max_rollbacks is ", limit));
        NoteLimit("checkpoint.max_rollbacks", limit, loss);
        return result;
      }
      RETURN_IF_ERROR(epoch.Uncertainty());
      const std::optional<Step> stalled_at = epoch.stalled_at();
      if (stalled_at.has_value() && !stall_budget_.Spend(*stalled_at)) {
        NoteLimit("cluster.stall_timeout_s", job_.cluster().stall_timeout_s(), loss);
        return absl::Status(result.status().code(),
                            absl::StrCat(result.status().message(),
                                         "\nthe job has gone back for a stall before, and got no "
                                         "further since"));
      }
      ++rollbacks_;
      start = epoch.NextStart();
      Note("rollback", start, loss);
      Tell(absl::StrCat(loss, "; going back to ", WhereItBegins(start), " (epoch ", start.epoch,
                        ")"));
    }
  }

  // Nobody acts in an epoch that is not on the medium; and its logs begin empty.
  absl::Status BeginEpoch(const EpochStart& start) {
    metrics_->DropPartialLine();
    if (!writes_checkpoints_) return absl::OkStatus();
    RETURN_IF_ERROR(store_.Prepare());
    JobState state;
    state.set_job_id(job_.name());
    state.set_epoch(start.epoch);
    state.set_base_checkpoint(start.base);
    RETURN_IF_ERROR(store_.WriteJobState(state));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_.List(directory_.path()));
    for (const std::string& name : names) {
      if (absl::StartsWith(name, "server-") && absl::EndsWith(name, ".data")) {
        RETURN_IF_ERROR(directory_.Remove(name));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<JobResult> RunEpoch(EpochRun* epoch, const EpochStart& start) {
    RETURN_IF_ERROR(epoch->Train());
    const double wall_s = absl::ToDoubleSeconds(watch_.Elapsed());
    if (observer_.on_training_done) observer_.on_training_done();
    const absl::Status checkpoints = epoch->FinishCheckpoints();
    // Without the last checkpoint the result stands; without a process it would lack its digest.
    if (!checkpoints.ok() && !epoch->Loss().empty()) return checkpoints;
    absl::StatusOr<JobResult> result = Collect(epoch, start, wall_s, checkpoints);
    if (checkpoints.ok()) return result;
    std::string error = absl::StrCat("the model is trained, but its checkpoint can't be written: ",
                                     checkpoints.message());
    if (!result.ok()) absl::StrAppend(&error, "\n", result.status().message());
    return absl::Status(checkpoints.code(), error);
  }

  EpochObserver MakeEpochObserver() {
    EpochObserver observer;
    observer.on_servers_up = [this](const std::vector<std::string>& addresses) {
      if (observer_.on_servers_up) observer_.on_servers_up(addresses);
    };
    observer.on_metrics = [this](absl::string_view data) {
      OnMetrics(data);
      return metrics_->TakeEvaluations();
    };
    observer.on_evaluation = [this](const EvaluationEvent& event) { OnEvaluation(event); };
    observer.on_device = [this](uint32_t rank, const std::string& warning) {
      device_warnings_.Set(rank, warning);
      ReportDeviceWarnings(job_.cluster().workers());
    };
    observer.on_server_end = [this](size_t index, const std::string& how_it_ended, bool came_up) {
      return OnServerEnd(index, how_it_ended, came_up);
    };
    observer.on_notice = [this](const std::string& text) { Tell(text); };
    observer.on_reached = [this](Step reached) { reached_ = std::max(reached_, reached); };
    observer.on_checkpoint = [this](const CheckpointEvent& event) { OnCheckpoint(event); };
    observer.samples_through = [this](Step cut) { return samples_.Through(cut); };
    return observer;
  }

  absl::Status WriteJob() {
    if (options_.is_resumed && !job_before_.has_value()) job_before_ = ReadJob();
    Job job = job_;
    // The run directory may be moved, or copied.
    if (job.checkpoint().directory() == directory_.CheckpointDirectory()) {
      job.mutable_checkpoint()->clear_directory();
    }
    return directory_.Write("job.textproto", JobToText(job));
  }

  std::string ReadJob() const {
    std::ifstream file(directory_.File("job.textproto"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // A job that could not be trained at all is not what --resume should go on with.
  void RestoreJob() {
    if (trained_ || !job_before_.has_value() || job_before_->empty()) return;
    const absl::Status restored = directory_.Write("job.textproto", *job_before_);
    if (!restored.ok()) Tell(std::string(restored.message()));
  }

  void OnMetrics(absl::string_view data) {
    const uint64_t before = metrics_->progress_events();
    const uint64_t phases = metrics_->phase_events();
    metrics_->Append(data, watch_.Elapsed());
    for (const std::string& text : metrics_->TakeWarnings()) Tell(absl::StrCat("warning: ", text));
    if (metrics_->phase_events() != phases && metrics_->progress().phase && observer_.on_progress) {
      observer_.on_progress(metrics_->progress());
    }
    if (metrics_->progress_events() == before) return;
    trained_ = true;
    const Progress& progress = metrics_->progress();
    samples_.Report(static_cast<int64_t>(progress.step), progress.samples);
    reached_ = std::max(reached_, Step(static_cast<int64_t>(progress.step) - 1));
    if (observer_.on_progress) observer_.on_progress(progress);
  }

  // Once so many workers have said what they compute on.
  void ReportDeviceWarnings(size_t num_ranks) {
    for (const DeviceWarnings::Warning& warning : device_warnings_.Take(num_ranks)) {
      metrics_->AppendEvent(
          {{"event", "warning"}, {"ranks", warning.ranks}, {"text", warning.text}},
          watch_.Elapsed());
      Tell(absl::StrCat("warning: ", DescribeWarning(warning)));
    }
  }

  RestartPolicy::Decision OnServerEnd(size_t index, const std::string& how_it_ended, bool came_up) {
    const RestartPolicy::Decision decision = restart_policy_.OnEnd(index, came_up, reached_);
    const std::string name = ServerGroup::NameOf(index);
    const std::string end = absl::StrCat(name, " ", how_it_ended);
    if (!decision.restart) {
      Tell(absl::StrCat(end, "; not started again: ", decision.why_not));
      if (decision.is_exhausted) {
        NoteLimit("cluster.max_server_restarts", job_.cluster().max_server_restarts(), end);
      }
      return decision;
    }
    ++restarts_;
    metrics_->AppendEvent(
        {{"event", "server_restart"}, {"process", name}, {"reason", how_it_ended}},
        watch_.Elapsed());
    Tell(absl::StrCat(end, "; started again",
                      decision.delay > absl::ZeroDuration()
                          ? absl::StrCat(" in ", absl::FormatDuration(decision.delay))
                          : ""));
    return decision;
  }

  void OnCheckpoint(const CheckpointEvent& event) {
    Json json;
    if (event.kind == CheckpointEvent::kNotRemoved) {
      Tell(absl::StrCat("old checkpoints are not removed: ", event.reason));
      return;
    }
    json["event"] =
        event.kind == CheckpointEvent::kCommitted ? "checkpoint" : "checkpoint_called_off";
    json["step"] = event.cut.value();
    json["name"] = event.name;
    if (event.kind == CheckpointEvent::kCalledOff) {
      ++called_off_;
      json["reason"] = event.reason;
      TellOfCallOff(event);
    } else {
      ++committed_;
      last_ = event.name;
      json["bytes"] = event.bytes;
      json["full"] = event.is_full;
      json["pause_s"] = event.pause_s;
      json["write_s"] = event.write_s;
    }
    metrics_->AppendEvent(std::move(json), watch_.Elapsed());
  }

  // The same checkpoint may be tried again and again. Bytes and the like in the reason change.
  void TellOfCallOff(const CheckpointEvent& event) {
    std::string words = event.reason;
    words.erase(std::remove_if(words.begin(), words.end(), absl::ascii_isdigit), words.end());
    if (!calls_off_told_.emplace(event.name, std::move(words)).second) return;
    Tell(absl::StrCat("checkpoint ", event.name, " was called off: ", event.reason));
  }

  void OnEvaluation(const EvaluationEvent& event) {
    const EvaluationState& state = event.state;
    Json json;
    json["event"] = "decision";
    json["step"] = event.report.step.value();
    json["is_best"] = event.verdict.is_best;
    json["stops"] = event.verdict.stops;
    evaluations_ = SummarizeEvaluations(state, event.verdict.stops);
    json.update(evaluations_);
    metrics_->AppendEvent(std::move(json), watch_.Elapsed());
    Tell(DescribeEvaluation(event, job_.evaluate().patience()));
  }

  void Tell(const std::string& text) {
    if (observer_.on_notice) observer_.on_notice(text);
  }

  // Into the metrics: what comes after begins at `start`.
  void Note(const char* event, const EpochStart& start, const std::string& reason) {
    Json json;
    json["event"] = event;
    json["epoch"] = start.epoch;
    json["step"] = start.first_step().value();
    json["checkpoint"] = start.base.empty() ? Json(nullptr) : Json(start.base);
    if (!reason.empty()) json["reason"] = reason;
    metrics_->AppendEvent(std::move(json), watch_.Elapsed());
  }

  // A limit of the job file that a loss has reached.
  void NoteLimit(const char* field, uint32_t limit, const std::string& reason) {
    metrics_->AppendEvent(
        {{"event", "limit"}, {"field", field}, {"limit", limit}, {"reason", reason}},
        watch_.Elapsed());
  }

  // The last line of a launch.
  void NoteEnd(const absl::Status& status) {
    Json json = {{"event", "end"}, {"status", absl::StatusCodeToString(status.code())}};
    if (!status.ok()) json["reason"] = std::string(status.message());
    json["has_summary"] = has_summary_;
    metrics_->AppendEvent(std::move(json), watch_.Elapsed());
  }

  // `last_checkpoint`: why there is none of the last step.
  void AddHistory(const EpochStart& start, const absl::Status& last_checkpoint,
                  Json* summary) const {
    (*summary)["server_restarts"] = restarts_;
    (*summary)["rollbacks"] = rollbacks_;
    (*summary)["epoch"] = start.epoch;
    (*summary)["resumed_from_step"] =
        options_.is_resumed ? Json(options_.start.first_step().value()) : Json(nullptr);
    if (!evaluations_.empty()) (*summary)["evaluations"] = evaluations_;
    if (!writes_checkpoints_) return;
    Json& checkpoints = (*summary)["checkpoints"];
    checkpoints["committed"] = committed_;
    checkpoints["called_off"] = called_off_;
    checkpoints["last"] = last_.empty() ? Json(nullptr) : Json(last_);
    checkpoints["missing"] =
        last_checkpoint.ok() ? Json(nullptr) : Json(std::string(last_checkpoint.message()));
  }

  absl::StatusOr<JobResult> Collect(EpochRun* epoch, const EpochStart& start, double wall_s,
                                    const absl::Status& last_checkpoint) {
    JobResult result;
    ASSIGN_OR_RETURN(const std::vector<Json> workers, epoch->WorkerResults());
    // A short job may have ended before its workers were asked.
    for (uint32_t rank = 0; rank < workers.size(); ++rank) {
      const auto warning = workers[rank].find("device_warning");
      const bool warns = warning != workers[rank].end() && warning->is_string();
      device_warnings_.Set(rank, warns ? warning->get<std::string>() : "");
    }
    // The workers' results stand, whatever becomes of the servers now.
    const absl::StatusOr<Digest> digest = epoch->AskServers(&result.servers);
    result.summary = MakeSummary(job_, workers,
                                 digest.ok() ? std::make_optional(*digest) : std::nullopt, wall_s);
    AddHistory(start, last_checkpoint, &result.summary);
    if (options_.is_resumed && !TrainedAnything(workers) &&
        KeepCounts(ReadSummary(), &result.summary)) {
      Tell("nothing was left to train: the counts are those of the training before");
    } else {
      WriteReports(workers, result.servers);
    }
    collected_ = result;
    RETURN_IF_ERROR(WriteSummary(result.summary));
    has_summary_ = true;
    if (digest.ok()) return result;
    return absl::Status(digest.status().code(),
                        absl::StrCat("the model is trained, but summary.json lacks its digest: ",
                                     digest.status().message()));
  }

  // What processes report at their end. The result doesn't hang on these files.
  void WriteReports(const std::vector<Json>& workers, const std::vector<ServerReport>& servers) {
    const auto write = [this](const std::string& name, const std::string& text) {
      const absl::Status written = directory_.Write(name, text + "\n");
      if (!written.ok()) Tell(std::string(written.message()));
    };
    for (uint32_t rank = 0; rank < workers.size(); ++rank) {
      write(WorkerGroup::ResultName(rank), workers[rank].dump(2));
    }
    if (!servers.empty()) write("server_stats.json", StatsToJson(servers, {}));
  }

  Json ReadSummary() const {
    std::ifstream file(directory_.File("summary.json"));
    return Json::parse(file, nullptr, false);
  }

  absl::Status WriteSummary(const Json& summary) const {
    const absl::Status written = directory_.Write("summary.json", summary.dump(2) + "\n");
    if (written.ok()) return written;
    return absl::Status(
        written.code(),
        absl::StrCat("the model is trained, but its result can't be kept: ", written.message()));
  }

  const Job& job_;
  const JobOptions& options_;
  const RunDirectory& directory_;
  const JobObserver& observer_;
  SignalWatch* const signals_;
  const bool writes_checkpoints_;
  const Stopwatch watch_;
  PosixDisk disk_;
  CheckpointStore store_;
  SampleCounter samples_;
  std::unique_ptr<MetricsLog> metrics_;
  DeviceWarnings device_warnings_;
  std::optional<std::string> job_before_;  // The job file of the run that is resumed.
  bool trained_ = false;
  Step reached_ = kNoStep;  // The furthest step that was applied in any epoch.
  RestartPolicy restart_policy_;
  Budget rollback_budget_;
  Budget stall_budget_{1};  // What hangs again before the job got further would hang for ever.
  uint32_t restarts_ = 0;   // Of servers.
  uint32_t rollbacks_ = 0;
  uint64_t committed_ = 0;
  uint64_t called_off_ = 0;
  std::string last_;                                              // Checkpoint.
  std::set<std::pair<std::string, std::string>> calls_off_told_;  // Checkpoints, and why.
  std::optional<JobResult> collected_;  // Of the epoch that runs, once it is trained.
  bool has_summary_ = false;            // summary.json is of this launch.
  Json evaluations_;                    // As in the summary; null before the first.
};

}  // namespace

absl::StatusOr<JobResult> RunJob(const Job& job, const JobOptions& options,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals) {
  return JobController(job, options, directory, observer, signals).Run();
}

}  // namespace thermocline
