#include "deploy/http/monitor_state.h"

#include <cmath>
#include <optional>

#include "absl/time/time.h"
#include "deploy/http/figures.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kNotConnected[] = "it is not connected";

// When a process has started, by the clock of its host. It is computed of two times that are
// measured one after the other.
template <typename Stats>
double StartOf(const Stats& stats) {
  return static_cast<double>(stats.clock_ns()) * 1e-9 - stats.uptime_s();
}
constexpr double kStartErrorS = 0.05;

// Samples before the step at which a worker has begun are none of its own.
void LeaveOutSamplesOf(const ServerStats&, ServerStats*) {}
void LeaveOutSamplesOf(const WorkerStats& first, WorkerStats* sum_before) {
  sum_before->set_samples(sum_before->samples() - first.samples());  // Modulo 2^64.
}

// A process is known by its start: the next one may have its address.
template <typename Stats>
void TakeStats(const Stats& now, const std::string& address, absl::Duration took, bool has_last,
               MonitoredProcess* process, Stats* last, Stats* sum_before) {
  const bool is_another = has_last && std::abs(StartOf(now) - StartOf(*last)) > kStartErrorS;
  if (is_another) AddCounters(*last, sum_before);
  if (is_another || !has_last) LeaveOutSamplesOf(now, sum_before);
  *last = now;
  process->set_address(address);
  process->set_answer_s(absl::ToDoubleSeconds(took));
  process->clear_error();
}

}  // namespace

MonitoredProcess* MonitorState::Of(ProcessRole role, uint32_t index) {
  const auto [place, is_new] = places_.try_emplace({role, index}, snapshot_.processes_size());
  if (!is_new) return snapshot_.mutable_processes(place->second);
  MonitoredProcess* const process = snapshot_.add_processes();
  process->set_role(role == ProcessRole::kServer ? "server" : "worker");
  process->set_index(index);
  process->set_error(kNotConnected);
  return process;
}

MonitoredProcess* MonitorState::At(const std::string& address) {
  for (MonitoredProcess& process : *snapshot_.mutable_processes()) {
    if (process.has_worker() && process.address() == address) return &process;
  }
  return nullptr;
}

void MonitorState::OnStart(const ProcessId& id, const std::string& host) {
  MonitoredProcess* const process = Of(id.role, id.index);
  process->set_host(host);
  process->set_starts(process->starts() + 1);
  process->set_has_ended(false);
  process->set_error(kNotConnected);
  snapshot_.mutable_job()->set_generation(id.generation);
}

void MonitorState::OnEnd(const ProcessId& id, bool is_done) {
  MonitoredProcess* const process = Of(id.role, id.index);
  process->set_has_ended(is_done);
  process->set_error("it has ended");
}

void MonitorState::OnStats(const std::vector<ServerReport>& servers,
                           const std::vector<WorkerReport>& workers) {
  for (MonitoredProcess& process : *snapshot_.mutable_processes()) {
    process.set_error(kNotConnected);
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    const ServerReport& report = servers[i];
    MonitoredProcess* const process = Of(ProcessRole::kServer, static_cast<uint32_t>(i));
    if (!report.stats.ok()) {
      process->set_error(std::string(report.stats.status().message()));
      continue;
    }
    const bool has_last = process->has_server();
    TakeStats(*report.stats, report.address, report.took, has_last, process,
              process->mutable_server(), process->mutable_server_before());
  }
  for (const WorkerReport& report : workers) {
    if (!report.stats.ok()) {
      MonitoredProcess* const process = At(report.address);
      if (process != nullptr) process->set_error(std::string(report.stats.status().message()));
      continue;
    }
    MonitoredProcess* const process = Of(ProcessRole::kWorker, report.stats->worker_rank());
    const bool has_last = process->has_worker();
    TakeStats(*report.stats, report.address, report.took, has_last, process,
              process->mutable_worker(), process->mutable_worker_before());
  }
}

void MonitorState::OnProgress(const Json& event) {
  JobFigures* const job = snapshot_.mutable_job();
  const auto take = [&](const char* name, void (JobFigures::*set)(double),
                        void (JobFigures::*clear)()) {
    const std::optional<double> value = NumberAt(event, name);
    value.has_value() ? (job->*set)(*value) : (job->*clear)();
  };
  take("step", &JobFigures::set_step, &JobFigures::clear_step);
  take("samples", &JobFigures::set_samples, &JobFigures::clear_samples);
  take("samples_per_s", &JobFigures::set_samples_per_s, &JobFigures::clear_samples_per_s);
  take("fraction", &JobFigures::set_fraction, &JobFigures::clear_fraction);
  take("loss", &JobFigures::set_loss, &JobFigures::clear_loss);
  take("auc", &JobFigures::set_auc, &JobFigures::clear_auc);
  take("learning_rate", &JobFigures::set_learning_rate, &JobFigures::clear_learning_rate);
  take("wait_share", &JobFigures::set_wait_share, &JobFigures::clear_wait_share);
  ForEachTask(event, [this](const std::string& label, const Json& figures) {
    TaskFigures* const task = TaskNamed(label);
    const std::optional<double> loss = NumberAt(figures, "loss"), auc = NumberAt(figures, "auc");
    loss.has_value() ? task->set_loss(*loss) : task->clear_loss();
    auc.has_value() ? task->set_auc(*auc) : task->clear_auc();
  });
}

TaskFigures* MonitorState::TaskNamed(const std::string& label) {
  for (TaskFigures& task : *snapshot_.mutable_job()->mutable_tasks()) {
    if (task.task() == label) return &task;
  }
  TaskFigures* const task = snapshot_.mutable_job()->add_tasks();
  task->set_task(label);
  return task;
}

void MonitorState::OnEvaluation(const Json& event) {
  JobFigures* const job = snapshot_.mutable_job();
  const auto take = [&](const char* name, void (JobFigures::*set)(double)) {
    const std::optional<double> value = NumberAt(event, name);
    if (value.has_value()) (job->*set)(*value);
  };
  job->set_evaluations(job->evaluations() + 1);
  job->set_evaluating_s(job->evaluating_s() + NumberAt(event, "seconds").value_or(0));
  take("auc", &JobFigures::set_eval_auc);
  take("gauc", &JobFigures::set_eval_gauc);
  take("logloss", &JobFigures::set_eval_logloss);
  take("normalized_entropy", &JobFigures::set_eval_normalized_entropy);
  take("calibration", &JobFigures::set_eval_calibration);
  take("own_metric", &JobFigures::set_eval_own_metric);
  ForEachTask(event, [this](const std::string& label, const Json& figures) {
    TaskFigures* const task = TaskNamed(label);
    const auto take_of_task = [&](const char* name, void (TaskFigures::*set)(double)) {
      const std::optional<double> value = NumberAt(figures, name);
      if (value.has_value()) (task->*set)(*value);
    };
    take_of_task("auc", &TaskFigures::set_eval_auc);
    take_of_task("gauc", &TaskFigures::set_eval_gauc);
    take_of_task("logloss", &TaskFigures::set_eval_logloss);
    take_of_task("normalized_entropy", &TaskFigures::set_eval_normalized_entropy);
    take_of_task("calibration", &TaskFigures::set_eval_calibration);
  });
}

void MonitorState::OnCheckpoint(const Json& event) {
  JobFigures* const job = snapshot_.mutable_job();
  job->set_checkpoints(job->checkpoints() + 1);
  job->set_checkpoint_bytes_written(job->checkpoint_bytes_written() +
                                    static_cast<uint64_t>(NumberAt(event, "bytes").value_or(0)));
  job->set_checkpoint_write_s(job->checkpoint_write_s() + NumberAt(event, "write_s").value_or(0));
  job->set_checkpoint_pause_s(job->checkpoint_pause_s() + NumberAt(event, "pause_s").value_or(0));
}

void MonitorState::OnEvent(const Json& event) {
  JobFigures* const job = snapshot_.mutable_job();
  const std::string kind = TextAt(event, "event");
  if (kind == "progress") OnProgress(event);
  if (kind == "eval") OnEvaluation(event);
  if (kind == "checkpoint") OnCheckpoint(event);
  if (kind == "checkpoint_called_off") {
    job->set_checkpoints_called_off(job->checkpoints_called_off() + 1);
  }
  if (kind == "server_restart") job->set_server_restarts(job->server_restarts() + 1);
  if (kind == "rollback") {
    job->set_rollbacks(job->rollbacks() + 1);
    job->set_step(NumberAt(event, "step").value_or(0));
    slow_.clear();  // Who is slow in the next generation is seen anew.
    job->set_slow_hosts(0);
  }
  if (kind == "warning") job->set_warnings(job->warnings() + 1);
  if (kind == "started") job->set_start_time(NumberAt(event, "time").value_or(0));
  if (kind == "slow_host") {
    const auto host =
        std::make_tuple(TextAt(event, "host"), TextAt(event, "role"), TextAt(event, "what"));
    event.value("is_slow", false) ? void(slow_.insert(host)) : void(slow_.erase(host));
    std::set<std::string> hosts;
    for (const auto& slow : slow_) hosts.insert(std::get<0>(slow));
    job->set_slow_hosts(static_cast<uint32_t>(hosts.size()));
  }
}

ServerStats FoldedServer(const MonitoredProcess& process) {
  ServerStats folded = process.server();
  AddCounters(process.server_before(), &folded);
  return folded;
}

WorkerStats FoldedWorker(const MonitoredProcess& process) {
  WorkerStats folded = process.worker();
  AddCounters(process.worker_before(), &folded);
  return folded;
}

}  // namespace thermocline
