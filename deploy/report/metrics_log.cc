#include "deploy/report/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/job/data_place.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

// A worker's lines are a few hundred bytes; anything longer is not a worker's line.
constexpr size_t kMaxLineBytes = 1 << 20;

constexpr std::streamoff kMetricsTailBytes = 256 << 10;

uint64_t Whole(const nlohmann::ordered_json& json, const char* name) {
  return static_cast<uint64_t>(std::max(0.0, NumberAt(json, name).value_or(0)));
}

}  // namespace

MetricsTail ReadMetricsTail(const std::string& path) {
  MetricsTail tail;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  file.seekg(std::max<std::streamoff>(0, size - kMetricsTailBytes));
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("event")) continue;  // The first may be cut.
    const auto& event = json["event"];
    if (event == "progress") tail.progress = json;
    // After an end comes only the next launch.
    tail.end.reset();
    if (event == "end") tail.end = json;
  }
  return tail;
}

std::vector<DeviceWarnings::Warning> DeviceWarnings::Take(size_t num_ranks) {
  std::vector<Warning> warnings;
  if (of_rank_.size() < num_ranks) return warnings;
  for (const auto& [rank, text] : of_rank_) {
    if (text.empty() || taken_.count(text) > 0) continue;
    const auto same =
        std::find_if(warnings.begin(), warnings.end(),
                     [&text = text](const Warning& warning) { return warning.text == text; });
    (same == warnings.end() ? warnings.emplace_back(Warning{text, {}}) : *same)
        .ranks.push_back(rank);
  }
  for (const Warning& warning : warnings) taken_.insert(warning.text);
  return warnings;
}

std::string DescribeWarning(const DeviceWarnings::Warning& warning) {
  return absl::StrCat(warning.ranks.size() == 1 ? "worker " : "workers ",
                      absl::StrJoin(warning.ranks, ", "), ": ", warning.text);
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Create(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<AppendedFile> file, AppendedFile::Open(path));
  std::unique_ptr<MetricsLog> log(new MetricsLog(std::move(file)));
  log->Note(log->file_->EndLine(), &log->file_fails_);
  return log;
}

void MetricsLog::Append(absl::string_view data, absl::Duration elapsed) {
  partial_.append(data.data(), data.size());
  size_t begin = 0;
  for (size_t end = partial_.find('\n'); end != std::string::npos;
       end = partial_.find('\n', begin)) {
    TakeLine(absl::string_view(partial_).substr(begin, end - begin), elapsed);
    begin = end + 1;
  }
  partial_.erase(0, begin);
  if (partial_.size() > kMaxLineBytes) {
    partial_.clear();
    ++bad_lines_;
  }
}

void MetricsLog::AppendEvent(nlohmann::ordered_json event, absl::Duration elapsed) {
  WriteLine(&event, elapsed);
}

void MetricsLog::WriteLine(nlohmann::ordered_json* json, absl::Duration elapsed) {
  (*json)["wall_s"] = std::round(absl::ToDoubleSeconds(elapsed) * 1000) / 1000;
  Note(file_->Append(absl::StrCat(
           json->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "\n")),
       &file_fails_);
  if (reader_) reader_(*json);
  if (events_ != nullptr) Note(events_->Append(*json, absl::Now()), &events_fail_);
}

// Training goes on without its lines.
void MetricsLog::Note(const absl::Status& written, bool* fails) {
  if (!written.ok() && !*fails) {
    warnings_.push_back(
        absl::StrCat(written.message(), "; its lines are missing until it can be written again"));
  }
  *fails = !written.ok();
}

// Numbers that are not finite are null in JSON.
bool MetricsLog::TakeEvaluation(const nlohmann::ordered_json& json) {
  const auto step = NumberAt(json, "step");
  if (!step || *step < 0) return true;
  EvaluationReport report;
  report.step = Step(static_cast<int64_t>(*step));
  report.pass = static_cast<uint32_t>(Whole(json, "pass"));
  const auto scheduled = json.find("scheduled");
  report.is_scheduled = scheduled != json.end() && *scheduled == true;
  const auto change = json.find("change");
  report.is_evaluation = report.is_scheduled || change == json.end() || *change != true;
  if (const std::string text = TextAt(json, "schedule"); !text.empty()) {
    absl::StatusOr<std::string> place = ParseDataPlace(text);
    if (!place.ok()) {
      ++bad_lines_;
      return true;
    }
    report.data_place = *std::move(place);
  }
  report.seconds = NumberAt(json, "seconds").value_or(0);
  report.change_seconds = NumberAt(json, "change_seconds").value_or(0);
  report.auc = NumberAt(json, "auc").value_or(std::nan(""));
  report.logloss = NumberAt(json, "logloss").value_or(std::nan(""));
  report.own_metric = NumberAt(json, "own_metric").value_or(std::nan(""));
  ForEachTask(json, [&](const std::string& label, const nlohmann::ordered_json& task) {
    if (label == TextAt(json, "task")) return;
    report.other_tasks.push_back({label, NumberAt(task, "auc").value_or(std::nan("")),
                                  NumberAt(task, "logloss").value_or(std::nan(""))});
  });
  evaluations_.push_back(report);
  return report.is_evaluation;
}

void MetricsLog::TakeLine(absl::string_view line, absl::Duration elapsed) {
  if (line.empty()) return;
  auto json = nlohmann::ordered_json::parse(line.begin(), line.end(), nullptr, false);
  if (!json.is_object()) {
    ++bad_lines_;
    return;
  }
  const std::string event = TextAt(json, "event");
  if (event == "phase" && !TakePhase(json)) return;
  // A change alone gets a line of its own, once it has been taken.
  if (event == "eval" && !TakeEvaluation(json)) return;
  WriteLine(&json, elapsed);
  if (event == "script_failed") script_failed_at_ = Step(static_cast<int64_t>(Whole(json, "step")));
  if (event == "trained") trained_ = Step(static_cast<int64_t>(Whole(json, "step")));
  if (event == "warning" && !TextAt(json, "text").empty()) {
    warnings_.push_back(TextAt(json, "text"));
  }
  if (event != "progress") return;
  progress_.step = Whole(json, "step");
  progress_.samples = Whole(json, "samples");
  progress_.samples_per_s = NumberAt(json, "samples_per_s").value_or(0);
  progress_.fraction = NumberAt(json, "fraction");
  progress_.loss = NumberAt(json, "loss");
  progress_.auc = NumberAt(json, "auc");
  progress_.task_aucs.clear();
  ForEachTask(json, [this](const std::string& label, const nlohmann::ordered_json& task) {
    progress_.task_aucs.emplace_back(label, NumberAt(task, "auc"));
  });
  const auto cache = json.find("cache");
  if (cache != json.end()) progress_.hit_rate = NumberAt(*cache, "hit_rate");
  if (const auto batches = json.find("batches"); batches != json.end() && batches->is_object()) {
    progress_.hot = HotProgress{batches->value("hot", false),
                                NumberAt(*batches, "rate").value_or(0), Whole(*batches, "changes")};
  }
  ++progress_events_;
}

bool MetricsLog::TakePhase(const nlohmann::ordered_json& json) {
  ++phase_events_;
  PhaseProgress phase = {TextAt(json, "phase"), Whole(json, "done"), Whole(json, "total"),
                         TextAt(json, "unit"), NumberAt(json, "seconds").value_or(0)};
  const bool is_new = !progress_.phase || progress_.phase->name != phase.name;
  const bool is_over = json.contains("ended");
  progress_.phase.reset();
  if (!is_over) progress_.phase = std::move(phase);
  return is_new || is_over;
}

}  // namespace thermocline
