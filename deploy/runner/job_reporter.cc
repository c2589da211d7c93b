#include "deploy/runner/job_reporter.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/data_place.h"
#include "common/job/job_loader.h"
#include "common/version/version.h"
#include "deploy/report/summary.h"

namespace thermocline {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::unique_ptr<JobReporter>> JobReporter::Create(const Job& job,
                                                                 const JobReporterOptions& options,
                                                                 const RunDirectory& directory,
                                                                 const JobObserver& observer) {
  auto reporter = std::unique_ptr<JobReporter>(new JobReporter(job, options, directory, observer));
  ASSIGN_OR_RETURN(reporter->metrics_, MetricsLog::Create(directory.File("metrics.jsonl")));
  if (options.http != nullptr) {
    reporter->metrics_->AlsoTell([http = options.http](const Json& line) { http->OnEvent(line); });
  }
  reporter->last_checkpoint_ = options.start.base;
  reporter->Append({{"event", "started"},
                    {"time", absl::ToUnixSeconds(absl::Now())},
                    {"host", HostName()},
                    {"version", THERMOCLINE_VERSION}});
  if (!options.hot_rows.is_null()) {
    Json pack = {{"event", "pack"}};
    pack.update(options.hot_rows);
    reporter->Append(std::move(pack));
  }
  return reporter;
}

void JobReporter::Tell(const std::string& text) {
  if (observer_.on_notice) observer_.on_notice(text);
}

void JobReporter::Append(Json event) { metrics_->AppendEvent(std::move(event), watch_.Elapsed()); }

// The job file
// ------------------------------------------------------------------------------------------------

absl::Status JobReporter::OnOpen() {
  totals_.reset();
  lately_.reset();
  ReportDeviceWarnings(/*num_ranks=*/0);
  directory_.Remove(kSlowHostsFile).IgnoreError();
  metrics_->DropPartialLine();
  result_.reset();
  has_summary_ = false;
  if (options_.is_resumed && !job_before_.has_value()) job_before_ = ReadJob();
  Job job = job_;
  // Leaves the default out, since the run directory may be moved or copied.
  if (job.checkpoint().directory() == directory_.CheckpointDirectory()) {
    job.mutable_checkpoint()->clear_directory();
  }
  if (job.calibration().directory() == directory_.HotDirectory()) {
    job.mutable_calibration()->clear_directory();
  }
  const std::string text = JobToText(job);
  RETURN_IF_ERROR(directory_.Write("job.textproto", text));
  if (!std::exchange(has_event_file_, true)) {
    if (const absl::Status made = BeginEventFile(text); !made.ok()) {
      Tell(absl::StrCat("warning: TensorBoard gets nothing of this launch: ", made.message()));
    }
  }
  return absl::OkStatus();
}

// The line "resume" was written before the file was there.
absl::Status JobReporter::BeginEventFile(const std::string& job) {
  const absl::Time now = absl::Now();
  ASSIGN_OR_RETURN(
      std::unique_ptr<EventFile> events,
      EventFile::Create(directory_.path(), HostName(), now, job_.evaluate().own_metric()));
  if (options_.is_resumed) {
    const Json resume = {{"event", "resume"}, {"step", options_.start.first_step().value()}};
    RETURN_IF_ERROR(events->Append(resume, now));
  }
  RETURN_IF_ERROR(events->WriteJob(job, now));
  metrics_->AlsoWriteTo(std::move(events));
  return absl::OkStatus();
}

std::string JobReporter::ReadJob() const {
  std::ifstream file(directory_.File("job.textproto"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<JobResult> JobReporter::OnEnd(const absl::Status& status) {
  // --resume should not continue a job that could not be trained at all.
  if (!status.ok() && !trained_ && job_before_.has_value() && !job_before_->empty()) {
    const absl::Status restored = directory_.Write("job.textproto", *job_before_);
    if (!restored.ok()) Tell(std::string(restored.message()));
  }
  ReportDeviceWarnings(/*num_ranks=*/0);
  Json json = {{"event", "end"}, {"status", absl::StatusCodeToString(status.code())}};
  if (!status.ok()) json["reason"] = std::string(status.message());
  json["has_summary"] = has_summary_;
  Append(std::move(json));
  if (!result_.has_value()) {
    if (committed_ > 0) Tell(absl::StrCat("checkpoint ", last_checkpoint_, " is the last"));
    return status;
  }
  result_->shortfall = status;
  return *std::move(result_);
}

// Events
// ------------------------------------------------------------------------------------------------

bool JobReporter::OnMetrics(absl::string_view data) {
  const uint64_t before = metrics_->progress_events();
  const uint64_t phases = metrics_->phase_events();
  metrics_->Append(data, watch_.Elapsed());
  for (const std::string& text : metrics_->TakeWarnings()) Tell(absl::StrCat("warning: ", text));
  if (metrics_->phase_events() != phases && metrics_->progress().phase) ShowProgress();
  if (metrics_->progress_events() == before) return false;
  trained_ = true;
  ShowProgress();
  return true;
}

// Rank 0 knows its own share of the cache alone.
void JobReporter::ShowProgress() const {
  if (!observer_.on_progress) return;
  Progress progress = metrics_->progress();
  progress.first_step = static_cast<uint64_t>(options_.start.first_step().value());
  if (lately_.has_value()) {
    if (const auto rate = lately_->hit_rate()) progress.hit_rate = rate;
    progress.slowest = SlowestOf(*lately_);
  }
  observer_.on_progress(progress);
}

void JobReporter::OnWorkers(const std::vector<WorkerReport>& workers) {
  const WorkerTotals now = SumOf(workers);
  if (now.workers < 2 || now.workers < job_.cluster().workers()) return;
  if (!now.has_cache && !now.has_exchange) return;
  const std::optional<WorkerTotals> before = totals_;
  if (before.has_value() && now.step <= before->step) return;
  totals_ = now;
  if (!before.has_value()) return;
  lately_ = now.Since(*before);
  const WorkerTotals& since = *lately_;
  const auto per_step = [&since](uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(since.step);
  };
  Json event = {{"event", "workers"},
                {"step", now.step},
                {"bytes_pulled_per_step", per_step(since.bytes_pulled)},
                {"bytes_pushed_per_step", per_step(since.bytes_pushed)}};
  const auto by_rank = [&](const char* name, const std::vector<uint64_t>& bytes) {
    for (const uint64_t of_rank : bytes) event[name].push_back(per_step(of_rank));
  };
  by_rank("bytes_to_device_per_step", since.bytes_to_device);
  by_rank("bytes_from_device_per_step", since.bytes_from_device);
  if (const auto rate = since.hit_rate()) event["hit_rate"] = *rate;
  if (since.has_exchange) {
    event["bytes_exchanged_per_step"] = per_step(since.bytes_exchanged);
    event["wait_for_rank_s"] = since.wait_for_rank_s;
    event["wait_in_phase_s"] = since.wait_in_phase_s;
    const auto slowest = SlowestOf(since);
    event["slowest_rank"] = slowest ? Json(slowest->rank) : Json(nullptr);
    event["slowest_share"] = slowest ? slowest->share : 0;
  }
  Append(std::move(event));
}

void JobReporter::OnDevice(uint32_t rank, const std::string& warning) {
  device_warnings_.Set(rank, warning);
  ReportDeviceWarnings(job_.cluster().workers());
}

void JobReporter::OnHosts(const HostWatch::Findings& findings, const std::vector<SlowHost>& slow) {
  for (const std::string& text : findings.silent) Tell(text);
  if (findings.changes.empty()) return;
  const auto to_json = [](const SlowHost& host) {
    return Json{{"host", host.host},
                {"role", host.role == ProcessRole::kServer ? "server" : "worker"},
                {"is_slow", host.is_slow},
                {"what", host.what == SlowHost::What::kWork ? "work" : "answers"},
                {"own_s", host.own_s},
                {"others_s", host.others_s},
                {"step_s", host.step_s}};
  };
  for (const SlowHost& change : findings.changes) {
    Json event = {{"event", "slow_host"}};
    event.update(to_json(change));
    Append(std::move(event));
    // One that comes and goes is named once.
    if (slow_told_.emplace(change.host, change.role).second) Tell(Describe(change));
  }
  Json file;
  Json& all = file["slow_hosts"] = Json::array();
  for (const SlowHost& host : slow) {
    all.push_back(to_json(host));
    all.back()["text"] = Describe(host);
  }
  // Only `thermocline stats` misses it if this fails.
  directory_.Write(kSlowHostsFile, file.dump(2) + "\n").IgnoreError();
}

// When so many workers have reported their devices.
void JobReporter::ReportDeviceWarnings(size_t num_ranks) {
  for (const DeviceWarnings::Warning& warning : device_warnings_.Take(num_ranks)) {
    Append({{"event", "warning"}, {"ranks", warning.ranks}, {"text", warning.text}});
    Tell(absl::StrCat("warning: ", DescribeWarning(warning)));
  }
}

void JobReporter::Report(const action::ReportServersUp& up) {
  if (observer_.on_servers_up) observer_.on_servers_up(up.addresses);
}

void JobReporter::Report(const action::ReportTrainingDone&) {
  training_s_ = absl::ToDoubleSeconds(watch_.Elapsed());
  if (observer_.on_training_done) observer_.on_training_done();
}

void JobReporter::Report(const action::ReportStart& report) {
  if (report.event == "rollback") ++rollbacks_;
  const GenerationStart& start = report.start;
  Json json;
  json["event"] = report.event;
  json["generation"] = start.generation;
  json["step"] = start.first_step().value();
  json["checkpoint"] = start.base.empty() ? Json(nullptr) : Json(start.base);
  if (!report.reason.empty()) json["reason"] = report.reason;
  if (report.event == "rollback") {
    json["process"] = report.process.empty() ? Json(nullptr) : Json(report.process);
  }
  Append(std::move(json));
}

void JobReporter::Report(const action::ReportLimit& limit) {
  Append({{"event", "limit"},
          {"field", limit.field},
          {"limit", limit.limit},
          {"reason", limit.reason}});
}

void JobReporter::Report(const action::ReportRestart& restart) {
  ++restarts_;
  Append({{"event", "server_restart"}, {"process", restart.process}, {"reason", restart.reason}});
}

void JobReporter::Report(const action::ReportCheckpoint& report) {
  const CheckpointEvent& event = report.event;
  if (event.kind == CheckpointEvent::kNotRemoved) {
    Tell(absl::StrCat("old checkpoints are not removed: ", event.reason));
    return;
  }
  Json json;
  json["event"] =
      event.kind == CheckpointEvent::kCommitted ? "checkpoint" : "checkpoint_called_off";
  json["step"] = event.step.value();
  json["name"] = event.name;
  if (event.kind == CheckpointEvent::kCalledOff) {
    ++called_off_;
    json["reason"] = event.reason;
    TellOfCallOff(event);
  } else {
    ++committed_;
    last_checkpoint_ = event.name;
    json["bytes"] = event.bytes;
    json["full"] = event.is_full;
    json["pause_s"] = event.pause_s;
    json["write_s"] = event.write_s;
  }
  Append(std::move(json));
}

// The same checkpoint may be tried repeatedly, and numbers in the reason change.
void JobReporter::TellOfCallOff(const CheckpointEvent& event) {
  std::string words = event.reason;
  words.erase(std::remove_if(words.begin(), words.end(), absl::ascii_isdigit), words.end());
  if (!calls_off_told_.emplace(event.name, std::move(words)).second) return;
  Tell(absl::StrCat("checkpoint ", event.name, " was called off: ", event.reason));
}

// Hot batches follow cold ones, or the other way. At a rate of one percent a pass has hundreds of
// such changes, so the console shows only those at which the rate changes.
void JobReporter::ReportChange(const EvaluationEvent& event) {
  const ScheduleState next = ReadDataPlace(event.decision.data_place).value_or(ScheduleState());
  Json json = {{"event", "change"},
               {"step", event.report.step.value()},
               {"pass", event.report.pass},
               {"hot", next.is_hot()},
               {"rate", next.rate()},
               {"logloss", next.has_logloss() ? Json(next.logloss()) : Json(nullptr)},
               {"seconds", event.report.change_seconds},
               {"schedule", DataPlaceToText(event.decision.data_place)}};
  Append(std::move(json));
  if (rate_ != next.rate()) Tell(DescribeChange(next, rate_));
  rate_ = next.rate();
}

void JobReporter::Report(const action::ReportEvaluation& report) {
  const EvaluationEvent& event = report.event;
  // A run that goes on where one was due evaluates again, but the change has been reported.
  if (!event.report.data_place.empty() && !event.decision.data_place.empty()) ReportChange(event);
  if (!event.report.is_evaluation) return;
  Json json;
  json["event"] = "decision";
  json["step"] = event.report.step.value();
  json["is_best"] = event.decision.is_best;
  json["stops"] = event.decision.stops;
  evaluations_ = SummarizeEvaluations(event.state, event.decision.stops);
  json.update(evaluations_);
  Append(std::move(json));
  Tell(DescribeEvaluation(event, job_.evaluate().patience()));
}

// The result
// ------------------------------------------------------------------------------------------------

void JobReporter::AddHistory(const action::WriteResult& result, Json* summary) const {
  (*summary)["server_restarts"] = restarts_;
  (*summary)["rollbacks"] = rollbacks_;
  (*summary)["generation"] = result.start.generation;
  (*summary)["resumed_from_step"] =
      options_.is_resumed ? Json(options_.start.first_step().value()) : Json(nullptr);
  if (!evaluations_.empty()) (*summary)["evaluations"] = evaluations_;
  if (!options_.writes_checkpoints) return;
  const absl::Status& missing = result.last_checkpoint;
  Json& checkpoints = (*summary)["checkpoints"];
  checkpoints["committed"] = committed_;
  checkpoints["called_off"] = called_off_;
  checkpoints["last"] = last_checkpoint_.empty() ? Json(nullptr) : Json(last_checkpoint_);
  checkpoints["missing"] = missing.ok() ? Json(nullptr) : Json(std::string(missing.message()));
}

absl::Status JobReporter::WriteResult(const action::WriteResult& result,
                                      const std::vector<Json>& workers) {
  // A short job may have ended before its workers were asked.
  for (uint32_t rank = 0; rank < workers.size(); ++rank) {
    const auto warning = workers[rank].find("device_warning");
    const bool warns = warning != workers[rank].end() && warning->is_string();
    device_warnings_.Set(rank, warns ? warning->get<std::string>() : "");
  }
  const std::optional<Digest> digest =
      result.digest.ok() ? std::make_optional(*result.digest) : std::nullopt;
  Json summary = MakeSummary(job_, workers, digest, training_s_);
  AddHistory(result, &summary);
  if (!options_.hot_rows.is_null()) {
    summary["hot"] = SummarizeHot(workers, options_.hot_rows);
    summary["pack"] = options_.hot_rows;
    AddReadByPacking(options_.hot_rows, &summary);
  }
  if (options_.is_resumed && !TrainedAnything(workers) &&
      KeepCounts(ReadJsonFile(directory_.File("summary.json")), &summary)) {
    Tell("nothing was left to train: the counts are those of the training before");
    // A run that was stopped after its last step has not asked the servers.
    if (!ReadJsonFile(directory_.File("server_stats.json")).is_object()) {
      WriteReports({}, result.servers);
    }
  } else {
    WriteReports(workers, result.servers);
  }
  const absl::Status written = directory_.Write("summary.json", summary.dump(2) + "\n");
  result_ = JobResult{std::move(summary), result.servers, absl::OkStatus()};
  has_summary_ = written.ok();
  if (written.ok()) return written;
  return absl::Status(
      written.code(),
      absl::StrCat("the model is trained, but its result can't be kept: ", written.message()));
}

// The reports of processes at their end. The result does not depend on these files.
void JobReporter::WriteReports(const std::vector<Json>& workers,
                               const std::vector<ServerReport>& servers) {
  const auto write = [this](const std::string& name, const std::string& text) {
    const absl::Status written = directory_.Write(name, text + "\n");
    if (!written.ok()) Tell(std::string(written.message()));
  };
  for (uint32_t rank = 0; rank < workers.size(); ++rank) {
    write(absl::StrCat("worker-", rank, ".json"), workers[rank].dump(2));
  }
  if (!servers.empty()) write("server_stats.json", StatsToJson(servers, {}));
}

}  // namespace thermocline
