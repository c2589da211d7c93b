#include "worker/progress.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/net/process_stats.h"

namespace thermocline {

WorkerProgress::WorkerProgress(std::string job_id, WorkerRank rank, int fd)
    : job_id_(std::move(job_id)), rank_(rank), fd_(fd) {}

void WorkerProgress::Watch(const StepPipeline* pipeline, const Trainer* trainer,
                           const PsSession* session) {
  absl::MutexLock lock(&mutex_);
  pipeline_ = pipeline;
  trainer_ = trainer;
  session_ = session;
  window_start_ = Clock::now();
}

std::vector<StageStats> WorkerProgress::Stages() const {
  std::vector<StageStats> stages;
  const auto add = [&](const char* name, const StageTimer& timer) {
    timer.CopyTo(name, &stages.emplace_back());
  };
  if (pipeline_ != nullptr) {
    add("read (ahead)", pipeline_->read_time());
    add("plan (ahead)", pipeline_->plan_time());
  }
  if (trainer_ != nullptr) {
    const TrainerStages& times = trainer_->stages();
    add("wait for data", times.wait_data);
    add("wait for rows", times.wait_rows);
    add("forward", times.forward);
    add("backward to embeddings", times.backward_embeddings);
    add("push embeddings", times.push_embeddings);
    add("backward dense", times.backward_dense);
    add("dense update", times.apply_dense);
    add("push dense", times.push_dense);
    add("report", times.report);
  }
  return stages;
}

void WorkerProgress::OnReport(const TrainerReport& report) {
  nlohmann::json line;
  {
    absl::MutexLock lock(&mutex_);
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - window_start_).count();
    window_start_ = now;
    samples_per_s_ = seconds > 0 ? report.window_global_samples / seconds : 0;
    report_ = report;
    line = {{"event", "progress"},
            {"step", report.steps},
            {"samples", report.global_samples},
            {"fraction", report.progress},
            {"loss", report.window_loss},
            {"auc", report.batch_auc},
            {"samples_per_s", samples_per_s_}};
    nlohmann::json& stages = line["stages_mean_us"];
    for (const StageStats& stage : Stages()) stages[stage.stage()] = stage.mean_us();
  }
  WriteLine(line.dump());
}

void WorkerProgress::OnEvaluation(const EvaluationResult& result) {
  WriteLine(nlohmann::json{{"event", "eval"},
                           {"samples", result.samples},
                           {"auc", result.auc},
                           {"logloss", result.logloss}}
                .dump());
}

WorkerStats WorkerProgress::Stats() const {
  WorkerStats stats;
  stats.set_job_id(job_id_);
  stats.set_worker_rank(rank_.value());
  stats.set_uptime_s(UptimeSeconds());
  stats.set_resident_bytes(ResidentBytes());
  absl::MutexLock lock(&mutex_);
  stats.set_step(report_.steps);
  stats.set_samples(report_.samples);
  stats.set_loss(report_.window_loss);
  stats.set_samples_per_s(samples_per_s_);
  for (StageStats& stage : Stages()) *stats.add_stages() = std::move(stage);
  if (trainer_ != nullptr) {
    stats.set_max_staleness(trainer_->staleness().max());
    stats.set_mean_staleness(trainer_->staleness().mean());
  }
  if (pipeline_ != nullptr) stats.set_bad_lines(pipeline_->progress().bad_lines);
  if (session_ != nullptr) {
    const PsSessionStats session = session_->stats();
    stats.set_bytes_pulled(session.bytes_pulled);
    stats.set_bytes_pushed(session.bytes_pushed);
    stats.set_rpc_retries(session.retries);
  }
  return stats;
}

// A controller that has gone away is no reason to stop: its death ends this process anyway.
void WorkerProgress::WriteLine(const std::string& line) const {
  if (fd_ < 0) return;
  const std::string text = line + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(fd_, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    written += n;
  }
}

}  // namespace thermocline
