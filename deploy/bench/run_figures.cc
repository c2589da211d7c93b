#include "deploy/bench/run_figures.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

bool IsTrue(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && *found == true;
}

Json PartOf(const Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found != json.end() && found->is_object() ? *found : Json();
}

absl::StatusOr<Json> ReadJson(const std::string& path) {
  Json json = ReadJsonFile(path);
  if (json.is_null()) return absl::DataLossError(absl::StrCat(path, " is missing or no JSON"));
  return json;
}

// The events of metrics.jsonl, as far as they tell when what was scored, and what it took.
struct Events {
  void Take(const Json& line) {
    const std::string event = TextAt(line, "event");
    if (event == "progress") TakeProgress(line);
    if (event == "eval") TakeEvaluation(line);
    if (event == "change") TakeChange(line);
  }

  void TakeProgress(const Json& line) {
    const auto now = NumberAt(line, "samples");
    const auto rate = NumberAt(line, "samples_per_s");
    const auto steps = NumberAt(line, "step");
    if (!now || !steps || !rate || *rate <= 0 || *now < samples) return;
    const double begin = progress.empty() ? 0 : progress.back().second;
    progress.emplace_back(*steps, begin + (*now - samples) / *rate);
    samples = *now;
  }

  static ScoredPoint PointOf(const Json& line) {
    ScoredPoint point;
    point.steps = static_cast<int64_t>(NumberAt(line, "step").value_or(-1)) + 1;
    point.auc = NumberAt(line, "auc");
    point.logloss = NumberAt(line, "logloss");
    point.seconds = NumberAt(line, "seconds").value_or(0);
    return point;
  }

  void TakeEvaluation(const Json& line) {
    points.push_back(PointOf(line));
    evaluation_bytes += NumberAt(line, "bytes_pulled").value_or(0);
  }

  // Of a change at an evaluation the line of that comes first.
  void TakeChange(const Json& line) {
    ScoredPoint point = PointOf(line);
    point.is_evaluation = false;
    const double schedule_s = std::exchange(point.seconds, 0);
    if (points.empty() || points.back().steps != point.steps) points.push_back(point);
    points.back().schedule_s = schedule_s;
    points.back().rate = NumberAt(line, "rate");
  }

  double samples = 0;
  double evaluation_bytes = 0;
  std::vector<std::pair<double, double>> progress;
  std::vector<ScoredPoint> points;
};

Events ReadEvents(const std::string& path) {
  Events events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object()) events.Take(json);
  }
  return events;
}

void FillPack(const Json& summary, RunFigures* figures) {
  const Json pack = PartOf(summary, "pack");
  figures->hot_rows = NumberAt(pack, "hot_rows");
  const Json samples = PartOf(pack, "samples");
  const auto hot = NumberAt(samples, "hot");
  const auto cold = NumberAt(samples, "cold");
  if (hot && cold && *hot + *cold > 0) figures->hot_share = *hot / (*hot + *cold);
  figures->pack = TextAt(pack, "file");
  figures->reuses_pack = IsTrue(pack, "reused");
  if (figures->reuses_pack) return;
  figures->calibrate_s = NumberAt(pack, "calibrate_s");
  figures->pack_s = NumberAt(pack, "pack_s");
}

// What worker 0 says of itself.
void FillWorker(const Json& worker, RunFigures* figures) {
  figures->device = TextAt(worker, "device");
  const auto samples = static_cast<double>(figures->samples);
  const auto to_device = NumberAt(worker, "bytes_to_device");
  const auto from_device = NumberAt(worker, "bytes_from_device");
  if (to_device && from_device) {
    const double own = NumberAt(worker, "samples").value_or(samples);
    figures->device_bytes_per_sample = (*to_device + *from_device) / std::max(own, 1.0);
  }
  const Json stages = PartOf(worker, "stages");
  for (const auto& [name, stage] : stages.items()) {
    // All workers take part in every step, so a stage's time is over the samples of all.
    figures->stage_us.emplace_back(name, 1e6 * NumberAt(stage, "total_s").value_or(0) / samples);
  }
}

}  // namespace

absl::StatusOr<RunFigures> ReadRun(const std::string& run_dir) {
  ASSIGN_OR_RETURN(const Json summary, ReadJson(run_dir + "/summary.json"));
  ASSIGN_OR_RETURN(const Json worker, ReadJson(run_dir + "/worker-0.json"));
  RunFigures figures;
  figures.steps = static_cast<int64_t>(NumberAt(summary, "steps").value_or(0));
  figures.samples = static_cast<int64_t>(NumberAt(summary, "samples").value_or(0));
  const auto rate = NumberAt(summary, "samples_per_s");
  if (figures.samples < 1 || !rate || *rate <= 0) {
    return absl::DataLossError(absl::StrCat(run_dir, "/summary.json tells of no training"));
  }
  const auto samples = static_cast<double>(figures.samples);
  Events events = ReadEvents(run_dir + "/metrics.jsonl");
  figures.points = std::move(events.points);
  figures.progress = std::move(events.progress);
  figures.train_s = samples / *rate;
  for (const ScoredPoint& point : figures.points) figures.train_s += point.schedule_s;
  for (ScoredPoint& point : figures.points) point.train_s = TrainSecondsAt(figures, point.steps);
  figures.samples_per_s = samples / figures.train_s;
  figures.auc = NumberAt(summary, "auc");
  figures.logloss = NumberAt(summary, "logloss");
  figures.digest = TextAt(summary, "model_digest");
  const double moved = NumberAt(summary, "bytes_pulled").value_or(0) +
                       NumberAt(summary, "bytes_pushed").value_or(0) +
                       NumberAt(PartOf(summary, "exchange"), "bytes_sent").value_or(0);
  figures.wire_bytes_per_sample = std::max(0.0, moved - events.evaluation_bytes) / samples;
  figures.hit_rate = NumberAt(PartOf(summary, "cache"), "hit_rate");
  FillPack(summary, &figures);
  FillWorker(worker, &figures);
  return figures;
}

double TrainSecondsAt(const RunFigures& run, int64_t steps) {
  double schedule_s = 0;
  for (const ScoredPoint& point : run.points) {
    if (point.steps <= steps) schedule_s += point.schedule_s;
  }
  const auto at = static_cast<double>(steps);
  std::pair<double, double> before = {0, 0};
  for (const auto& [end, seconds] : run.progress) {
    if (at <= end && end > before.first) {
      const double part = (at - before.first) / (end - before.first);
      return schedule_s + before.second + part * (seconds - before.second);
    }
    before = {end, seconds};
  }
  // The last steps may be less than a window of reports.
  return schedule_s + before.second * (before.first > 0 ? at / before.first : 0);
}

void TakeEvaluations(const RunFigures& evaluated, RunFigures* run) {
  std::vector<ScoredPoint> points;
  for (ScoredPoint point : evaluated.points) {
    if (!point.is_evaluation) continue;
    point.train_s = TrainSecondsAt(*run, point.steps);
    point.rate.reset();  // The schedule's points stay the run's own.
    point.schedule_s = 0;
    points.push_back(point);
  }
  for (const ScoredPoint& point : run->points) {
    if (!point.is_evaluation || point.rate) points.push_back(point);
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const ScoredPoint& a, const ScoredPoint& b) { return a.steps < b.steps; });
  run->points = std::move(points);
}

std::optional<double> SecondsToAuc(const RunFigures& run, double auc) {
  for (const ScoredPoint& point : run.points) {
    if (point.is_evaluation && point.auc && *point.auc >= auc) return point.train_s;
  }
  return std::nullopt;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<Spread> SpreadOf(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return Spread{Median(values), *low, *high};
}

std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string CsvCell(std::optional<double> value) {
  return value ? absl::StrFormat("%.10g", *value) : "";
}

}  // namespace thermocline
