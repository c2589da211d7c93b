#include "worker/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/process.h"
#include "common/job/data_place.h"

namespace thermocline {
namespace {

// 0.01 as such, not as the double that is nearest to the float.
double ForPeople(float rate) { return std::strtod(absl::StrFormat("%.7g", rate).c_str(), nullptr); }

// Shorter waits are the normal course of a step.
constexpr int64_t kWaitWorthSayingMicros = 50'000;

WorkerWait ToProto(const SessionWait& wait) {
  WorkerWait proto;
  proto.set_server(wait.server.value());
  proto.set_kind(wait.is_push ? WorkerWait::SERVER_ACKNOWLEDGEMENT : WorkerWait::SERVER_ROWS);
  proto.set_step(wait.step.value());
  proto.set_needed_step(wait.step.value());
  proto.set_seconds(static_cast<double>(wait.waited_us) * 1e-6);
  proto.set_last_error(std::string(wait.error.message()));
  return proto;
}

CacheStats ToProto(const RowSlabs& rows) {
  const CacheCounts counts = rows.counts();
  CacheStats cache;
  cache.set_budget_bytes(rows.options().layout.budget_bytes);
  cache.set_capacity_rows(rows.options().layout.capacity_rows());
  cache.set_rows_held(counts.rows_held);
  cache.set_rows_kept(counts.rows_kept);
  cache.set_kept_capacity_rows(rows.options().layout.kept_capacity_rows());
  cache.set_hits(counts.hits);
  cache.set_loaded(counts.loaded);
  cache.set_bypassed(counts.bypassed);
  cache.set_rejected_no_room(counts.rejected_no_room);
  cache.set_evicted(counts.evicted);
  cache.set_written_ahead(counts.written_ahead);
  cache.set_window_steps(rows.options().window_steps);
  cache.set_prefetch_steps(rows.options().prefetch_steps);
  return cache;
}

nlohmann::json EvaluationLine(const EvaluationResult& result, const EvaluationPlace& place) {
  nlohmann::json line = {{"event", "eval"},
                         {"step", place.step.value()},
                         {"scheduled", place.is_scheduled},
                         {"samples", result.samples},
                         {"learning_rate", ForPeople(place.learning_rate)}};
  AddMetrics(result, &line);
  if (place.pass > 0) line["pass"] = place.pass;
  return line;
}

void FillDevice(const Device& device, WorkerStats* stats) {
  const DeviceFallbacks fallbacks = device.fallbacks();
  stats->set_failed_captures(fallbacks.failed_captures);
  stats->set_full_precision_products(fallbacks.full_precision_products);
  const CopiedBytes copied = device.copies().bytes();
  stats->set_bytes_to_device(copied.to_device);
  stats->set_bytes_from_device(copied.from_device);
}

void FillSession(const PsSession& session, WorkerStats* stats) {
  const PsSessionStats counts = session.stats();
  stats->set_bytes_pulled(counts.bytes_pulled);
  stats->set_bytes_pushed(counts.bytes_pushed);
  stats->set_rpc_retries(counts.retries);
  for (const SessionWait& wait : session.waits(kWaitWorthSayingMicros)) {
    *stats->add_waits() = ToProto(wait);
  }
}

}  // namespace

WorkerProgress::WorkerProgress(std::string job_id, WorkerRank rank, int fd,
                               absl::Duration phase_period)
    : job_id_(std::move(job_id)), rank_(rank), fd_(fd), phase_period_(phase_period) {}

void WorkerProgress::Watch(Watched watched) {
  absl::MutexLock lock(&mutex_);
  last_stats_.reset();
  if (watched_.session != nullptr && watched.session == nullptr) last_stats_ = StatsOfParts();
  watched_ = std::move(watched);
  window_begin_ = TotalsNow();
  window_start_ = Clock::now();
}

std::vector<StageStats> WorkerProgress::Stages() const {
  std::vector<StageStats> stages;
  const auto add = [&](const char* name, const StageTimer& timer) {
    timer.CopyTo(name, &stages.emplace_back());
  };
  if (watched_.pipeline_times != nullptr) {
    add("read (ahead)", watched_.pipeline_times->read);
    add("plan (ahead)", watched_.pipeline_times->plan);
    if (watched_.cache != nullptr) add("plan cache (ahead)", watched_.pipeline_times->cache);
  }
  if (watched_.trainer != nullptr) {
    const TrainerStages& times = watched_.trainer->stages();
    add("wait for data", times.wait_data);
    add("wait for rows", times.wait_rows);
    add("forward", times.forward);
    add("backward to embeddings", times.backward_embeddings);
    if (watched_.cache != nullptr) add("update rows", times.update_rows);
    if (watched_.is_asynchronous) add("wait for device", times.wait_device);
    add("push embeddings", times.push_embeddings);
    add("backward dense", times.backward_dense);
    add("dense update", times.apply_dense);
    add("push dense", times.push_dense);
    add("report", times.report);
  }
  return stages;
}

WorkerProgress::Totals WorkerProgress::TotalsNow() const {
  Totals totals;
  if (watched_.trainer != nullptr) {
    const TrainerStages& times = watched_.trainer->stages();
    totals.steps = static_cast<int64_t>(times.forward.count());
    totals.wait_s = times.wait_data.total_s() + times.wait_rows.total_s();
  }
  if (watched_.session != nullptr) totals.session = watched_.session->stats();
  if (watched_.compute != nullptr) totals.copied = watched_.compute->copies().bytes();
  if (watched_.cache != nullptr) totals.cache = watched_.cache->counts();
  totals.stages = Stages();
  return totals;
}

void WorkerProgress::AddWindow(double seconds, nlohmann::json* line) {
  const Totals begin = std::exchange(window_begin_, TotalsNow());
  const Totals& end = window_begin_;
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  const auto steps = static_cast<double>(end.steps - begin.steps);
  nlohmann::json& stages = (*line)["stages_us_per_step"];
  for (size_t i = 0; i < end.stages.size() && i < begin.stages.size(); ++i) {
    const double taken = end.stages[i].total_s() - begin.stages[i].total_s();
    stages[end.stages[i].stage()] = share(1e6 * taken, steps);
  }
  // The share of the time that the training thread waits for data and for rows.
  (*line)["wait_share"] = share(end.wait_s - begin.wait_s, seconds);
  (*line)["bytes_pulled_per_step"] =
      share(static_cast<double>(end.session.bytes_pulled - begin.session.bytes_pulled), steps);
  (*line)["bytes_pushed_per_step"] =
      share(static_cast<double>(end.session.bytes_pushed - begin.session.bytes_pushed), steps);
  (*line)["bytes_to_device_per_step"] =
      share(static_cast<double>(end.copied.to_device - begin.copied.to_device), steps);
  (*line)["bytes_from_device_per_step"] =
      share(static_cast<double>(end.copied.from_device - begin.copied.from_device), steps);
  if (!has_cache()) return;
  const CacheCounts& from = begin.cache;
  const CacheCounts& to = end.cache;
  const int64_t hits = to.hits - from.hits;
  const int64_t loaded = to.loaded - from.loaded;
  const int64_t bypassed = to.bypassed - from.bypassed;
  const int64_t keys = hits + loaded + bypassed;
  // Steps are planned ahead of it: in the last windows there may be none left to plan.
  const auto rate = [keys](int64_t part) {
    return keys > 0 ? nlohmann::json(static_cast<double>(part) / static_cast<double>(keys))
                    : nlohmann::json(nullptr);
  };
  (*line)["cache"] = {
      {"hit_rate", rate(hits)},
      {"loaded_rate", rate(loaded)},
      {"bypass_rate", rate(bypassed)},
      {"rejected_no_room_rate", rate(to.rejected_no_room - from.rejected_no_room)},
      {"rows_held", to.rows_held},
      {"rows_kept", to.rows_kept},
      {"evicted_per_step", share(static_cast<double>(to.evicted - from.evicted), steps)},
      {"written_ahead_per_step",
       share(static_cast<double>(to.written_ahead - from.written_ahead), steps)},
      {"window_steps", watched_.cache->options().window_steps},
      {"prefetch_steps", watched_.cache->options().prefetch_steps}};
}

void WorkerProgress::OnBatches(const HotStats& hot) {
  absl::MutexLock lock(&mutex_);
  hot_ = hot;
}

void WorkerProgress::OnReport(const TrainerReport& report) {
  nlohmann::json line;
  std::vector<std::string> warnings;
  {
    absl::MutexLock lock(&mutex_);
    warnings = NewFallbacks();
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - window_start_).count();
    window_start_ = now;
    samples_per_s_ = seconds > 0 ? report.window_global_samples / seconds : 0;
    report_ = report;
    line = {{"event", "progress"},
            {"step", report.steps},
            {"samples", report.global_samples},
            {"fraction", report.progress},
            {"learning_rate", ForPeople(report.learning_rate)}};
    if (hot_.has_value()) {
      line["batches"] = {
          {"hot", hot_->is_hot()}, {"rate", hot_->rate()}, {"changes", hot_->changes()}};
    }
    if (report.skipped_steps > 0) line["skipped_steps"] = report.skipped_steps;
    // A window without a sample has no figures: it is one worker's share of a short batch, or a run
    // that goes on where training was over.
    if (report.window_samples > 0) {
      line["loss"] = report.window_loss;
      line["auc"] = report.batch_auc;
      for (const TaskReport& task : report.tasks) {
        line["tasks"].push_back(
            {{"label", task.label}, {"loss", task.window_loss}, {"auc", task.batch_auc}});
      }
    }
    if (report.window_global_samples > 0) {
      line["samples_per_s"] = samples_per_s_;
      AddWindow(seconds, &line);
    }
  }
  for (const std::string& warning : warnings) Warn(warning);
  WriteLine(line.dump());
}

std::vector<std::string> WorkerProgress::NewFallbacks() {
  std::vector<std::string> warnings;
  if (watched_.compute == nullptr) return warnings;
  const DeviceFallbacks now = watched_.compute->fallbacks();
  if (now.full_precision_products > warned_of_.full_precision_products) {
    warnings.push_back(absl::StrCat(
        now.full_precision_products,
        " shapes of matrix products are computed in FLOAT32: the device has no way to compute them "
        "in the precision that the job asks for"));
  }
  if (now.failed_captures > warned_of_.failed_captures) {
    warnings.push_back(absl::StrCat(now.failed_captures,
                                    " pieces of a step could not be captured as CUDA graphs; their "
                                    "operations are launched one by one"));
  }
  warned_of_ = now;
  return warnings;
}

void WorkerProgress::Warn(const std::string& text) const {
  LogLine(absl::StrCat("WARNING: ", text));
  const nlohmann::json line = {{"event", "warning"}, {"rank", rank_.value()}, {"text", text}};
  // The text may be a script's, and not be UTF-8.
  WriteLine(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

WorkerProgress::Phase WorkerProgress::Begin(absl::string_view name, const char* unit) const {
  return {std::string(name), 0, 0, unit, watch_.Elapsed(), std::nullopt};
}

std::string WorkerProgress::LineOf(const Phase& phase, bool ended) const {
  nlohmann::json line = {
      {"event", "phase"},   {"phase", phase.name},
      {"done", phase.done}, {"total", phase.total},
      {"unit", phase.unit}, {"seconds", absl::ToDoubleSeconds(watch_.Elapsed() - phase.start)}};
  if (ended) line["ended"] = true;
  return line.dump();
}

std::string WorkerProgress::Advance(uint64_t done, int64_t total, Phase* phase) {
  if (done != phase->done) ++advances_;
  phase->done = done;
  phase->total = total > 0 ? static_cast<uint64_t>(total) : 0;
  const absl::Duration now = watch_.Elapsed();
  if (now - phase->written.value_or(phase->start) < phase_period_) return "";
  phase->written = now;
  return LineOf(*phase, /*ended=*/false);
}

std::string WorkerProgress::End(const Phase& phase) const {
  return phase.written.has_value() ? LineOf(phase, /*ended=*/true) : "";
}

void WorkerProgress::Enter(absl::string_view phase) {
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    line = End(std::exchange(phase_, Begin(phase, "")));
    pulled_before_phase_ = BytesPulled();
  }
  WriteLine(line);
}

void WorkerProgress::OnScan(absl::string_view what, const ScanProgress& scan) {
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    if (!scan_.has_value() || scan_->name != what) scan_ = Begin(what, "bytes");
    line = AdvanceWait(scan.done_bytes, scan.total_bytes, scan.is_over, &scan_);
  }
  WriteLine(line);
}

void WorkerProgress::OnScriptWait(absl::string_view what, absl::Duration elapsed, bool is_over) {
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    if (!script_wait_.has_value()) script_wait_ = Begin(absl::StrCat("waiting for ", what), "s");
    line = AdvanceWait(absl::ToInt64Seconds(elapsed), /*total=*/0, is_over, &script_wait_);
  }
  WriteLine(line);
}

void WorkerProgress::OnScriptFailure(Step step) {
  WriteLine(nlohmann::json{{"event", "script_failed"}, {"step", step.value()}}.dump());
}

void WorkerProgress::OnTrained(Step last) {
  WriteLine(nlohmann::json{{"event", "trained"}, {"step", last.value()}}.dump());
}

std::string WorkerProgress::AdvanceWait(int64_t done, int64_t total, bool is_over,
                                        std::optional<Phase>* wait) {
  std::string line = Advance(static_cast<uint64_t>(done), total, &**wait);
  if (is_over) {
    line = End(**wait);
    wait->reset();
  }
  return line;
}

void WorkerProgress::OnSamples(int64_t samples, int64_t total) {
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    phase_.unit = "samples";
    line = Advance(static_cast<uint64_t>(samples), total, &phase_);
  }
  WriteLine(line);
}

void WorkerProgress::OnEvaluation(const EvaluationResult& result, const EvaluationPlace& place,
                                  const OrderScoring* scoring, absl::Duration taken) {
  WriteEvaluation(EvaluationLine(result, place), scoring, taken);
}

void WorkerProgress::OnScoring(const EvaluationResult& result, const EvaluationPlace& place,
                               const OrderScoring& scoring) {
  WriteEvaluation(EvaluationLine(result, place), &scoring, absl::ZeroDuration());
}

void WorkerProgress::WriteEvaluation(nlohmann::json line, const OrderScoring* scoring,
                                     absl::Duration taken) {
  line["seconds"] = absl::ToDoubleSeconds(taken);
  if (scoring != nullptr) {
    line["change"] = true;
    line["change_seconds"] = absl::ToDoubleSeconds(scoring->took);
    line["schedule"] = DataPlaceToText(scoring->data_place);
    taken += scoring->took;
  }
  {
    absl::MutexLock lock(&mutex_);
    line["bytes_pulled"] = BytesPulled() - pulled_before_phase_;
    window_start_ += absl::ToChronoNanoseconds(taken);
  }
  WriteLine(line.dump());
}

WorkerStats WorkerProgress::Stats() const {
  WorkerStats stats;
  {
    absl::MutexLock lock(&mutex_);
    stats = last_stats_.has_value() ? *last_stats_ : StatsOfParts();
  }
  stats.set_job_id(job_id_);
  stats.set_worker_rank(rank_.value());
  stats.set_uptime_s(UptimeSeconds());
  stats.set_resident_bytes(ResidentBytes());
  stats.set_clock_ns(MonotonicNanos());
  return stats;
}

WorkerStats WorkerProgress::StatsOfParts() const {
  WorkerStats stats;
  stats.set_step(report_.steps);
  stats.set_samples(report_.samples);
  stats.set_loss(report_.window_loss);
  for (const TaskReport& task : report_.tasks) {
    TaskStats* const of_task = stats.add_task_losses();
    of_task->set_task(task.label);
    of_task->set_loss(task.window_loss);
  }
  stats.set_samples_per_s(samples_per_s_);
  for (StageStats& stage : Stages()) *stats.add_stages() = std::move(stage);
  const Phase& phase = scan_.has_value()          ? *scan_
                       : script_wait_.has_value() ? *script_wait_
                                                  : phase_;
  stats.mutable_phase()->set_name(phase.name);
  stats.mutable_phase()->set_done(phase.done);
  stats.mutable_phase()->set_total(phase.total);
  stats.mutable_phase()->set_unit(phase.unit);
  stats.mutable_phase()->set_advances(advances_);
  if (hot_.has_value()) *stats.mutable_hot() = *hot_;
  stats.set_device(watched_.device);
  stats.set_device_warning(watched_.device_warning);
  if (watched_.compute != nullptr) FillDevice(*watched_.compute, &stats);
  if (watched_.trainer != nullptr) {
    stats.set_max_staleness(watched_.trainer->staleness().max());
    stats.set_mean_staleness(watched_.trainer->staleness().mean());
    watched_.trainer->stages().step.Snapshot().CopyTo(stats.mutable_step_time());
  }
  if (watched_.pipeline != nullptr) {
    const BatchReader::Progress read = watched_.pipeline->progress();
    stats.set_bad_lines(read.bad_lines);
    stats.set_padding_ids(read.padding_ids);
  }
  if (watched_.session != nullptr) FillSession(*watched_.session, &stats);
  if (has_cache()) *stats.mutable_cache() = ToProto(*watched_.cache);
  if (watched_.exchange != nullptr) {
    watched_.exchange->FillStats(stats.mutable_exchange());
    for (const ExchangeWait& wait : watched_.exchange->waits()) {
      if (wait.waited_us >= kWaitWorthSayingMicros) FillWait(wait, stats.add_waits());
    }
  }
  std::sort(stats.mutable_waits()->begin(), stats.mutable_waits()->end(),
            [](const WorkerWait& a, const WorkerWait& b) {
              return std::make_tuple(a.needed_step(), a.kind()) <
                     std::make_tuple(b.needed_step(), b.kind());
            });
  return stats;
}

Step WorkerProgress::AckedThrough() const {
  absl::MutexLock lock(&mutex_);
  return watched_.session == nullptr ? kNoStep : watched_.session->acked_through();
}

// A controller that has gone away is no reason to stop: its death ends this process anyway.
void WorkerProgress::WriteLine(const std::string& line) const {
  if (fd_ < 0 || line.empty()) return;
  absl::MutexLock lock(&write_mutex_);
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
