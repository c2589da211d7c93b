#include "deploy/page/run_history.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kChunkBytes = 1 << 20;
// Longer ones are no events; their bytes are not kept.
constexpr size_t kMaxLineBytes = 1 << 22;
constexpr size_t kMaxMarkBytes = 300;
constexpr size_t kMaxTextBytes = 2000;

bool IsTrue(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && *found == true;
}

// At most `most` bytes of a text; a character of UTF-8 is not cut.
std::string Shortened(std::string text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  text.resize(most);
  return text + "…";
}

bool NeedsStep(const std::string& kind) {
  return kind == "progress" || kind == "workers" || kind == "eval" || kind == "checkpoint" ||
         kind == "rollback" || kind == "resume";
}

// The part of a line that evaluations and checkpoints are shown by.
Json Picked(const Json& line, std::initializer_list<const char*> names) {
  Json picked = Json::object();
  for (const char* name : names) {
    if (const auto found = line.find(name); found != line.end()) picked[name] = *found;
  }
  return picked;
}

}  // namespace

// The file
// ------------------------------------------------------------------------------------------------

bool HistoryReader::Follow(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < offset_) *this = HistoryReader();
  file.seekg(offset_);
  std::string buffer(kChunkBytes, '\0');
  std::string line;  // The beginning of one that goes on in the next chunk.
  bool is_too_long = false;
  while (file.read(buffer.data(), buffer.size()), file.gcount() > 0) {
    const absl::string_view chunk(buffer.data(), static_cast<size_t>(file.gcount()));
    size_t begin = 0;
    for (size_t end = chunk.find('\n'); end != absl::string_view::npos;
         end = chunk.find('\n', begin)) {
      const absl::string_view rest = chunk.substr(begin, end - begin);
      offset_ += static_cast<int64_t>(line.size() + rest.size() + 1);
      if (is_too_long) {
        ++history_.num_lines;
        ++history_.bad_lines;
      } else if (line.empty()) {
        TakeLine(rest);
      } else {
        line.append(rest.data(), rest.size());
        TakeLine(line);
      }
      line.clear();
      is_too_long = false;
      begin = end + 1;
    }
    line.append(chunk.data() + begin, chunk.size() - begin);
    if (line.size() <= kMaxLineBytes) continue;
    is_too_long = true;
    offset_ += static_cast<int64_t>(line.size());
    line.clear();
  }
  history_.ends_within_line = !line.empty() || is_too_long;
  return true;
}

void HistoryReader::TakeLine(absl::string_view line) {
  if (line.empty()) return;
  ++history_.num_lines;
  if (!TakeEvent(Json::parse(line.begin(), line.end(), nullptr, false))) ++history_.bad_lines;
}

// Events
// ------------------------------------------------------------------------------------------------

bool HistoryReader::TakeEvent(Json line) {
  const auto wall_s = NumberAt(line, "wall_s");
  const std::string kind = wall_s ? TextAt(line, "event") : "";
  if (kind.empty()) return false;
  if (NeedsStep(kind) && !NumberAt(line, "step").has_value()) return false;
  if (BeginsLaunch(kind, *wall_s)) BeginLaunch();
  history_.t = std::max(history_.t, base_ + *wall_s);
  RunHistory::Launch& launch = history_.launches.back();
  launch.end = history_.t;
  if (kind == "started") TakeStart(line);
  if (kind != "started" && kind != "pack") launch.has_trained = true;
  if (kind == "progress") {
    TakeProgress(line);
    history_.last_progress = std::move(line);
    return true;
  }
  if (kind == "workers") {
    TakeWorkers(line);
    return true;
  }
  if (kind == "eval") TakeEvaluation(line);
  if (kind == "decision") TakeDecision(line);
  if (kind == "checkpoint") TakeCheckpoint(line);
  if (kind == "checkpoint_called_off") AddMark("checkpoints", "called_off", TextAt(line, "reason"));
  if (kind == "server_restart") {
    AddMark(TextAt(line, "process"), "restart", TextAt(line, "reason"));
  }
  if (kind == "rollback" || kind == "resume") TakeRollback(kind, line);
  if (kind == "limit") history_.limit = line;
  if (kind == "pack") history_.pack = line;
  if (kind == "phase") TakePhase(line);
  if (kind == "slow_host") TakeSlowHost(line);
  if (kind == "warning") AddMark("warnings", "warning", TextAt(line, "text"));
  if (kind == "end") TakeEnd(line);
  if (kind != "decision") List(kind, line);
  return true;
}

// A launch begins with a line that says so. Programs before that wrote none: after an end, at a
// resume that is not among a launch's first lines, and where its clock goes back, another has
// begun.
bool HistoryReader::BeginsLaunch(const std::string& kind, double wall_s) const {
  if (history_.launches.empty()) return true;
  const RunHistory::Launch& launch = history_.launches.back();
  if (!launch.status.empty()) return true;
  if (kind == "started" || (kind == "resume" && launch.has_trained)) return true;
  return base_ + wall_s < history_.t - 1e-6;
}

void HistoryReader::BeginLaunch() {
  for (auto& [name, lane] : history_.lanes) CloseSpan(&lane);
  base_ = history_.t;
  RunHistory::Launch launch;
  launch.begin = launch.end = base_;
  launch.generations = {{base_, NumberAt(history_.last_progress, "step").value_or(0)}};
  history_.launches.push_back(std::move(launch));
  ++history_.num_launches;
  history_.phase.clear();
  history_.limit = Json();
  if (history_.launches.size() > RunHistory::kMaxLaunches) history_.launches.pop_front();
}

void HistoryReader::TakeStart(const Json& line) {
  RunHistory::Launch& launch = history_.launches.back();
  launch.began_at = NumberAt(line, "time");
  launch.version = TextAt(line, "version");
  launch.host = TextAt(line, "host");
}

void HistoryReader::TakeProgress(const Json& line) {
  Series& series = history_.progress;
  const double step = *NumberAt(line, "step");
  // A run that was begun anew, without a line that says so.
  if (!series.empty() && series.place(series.size() - 1).step > step) DropBeyond(step - 1);
  series.Begin({step, history_.t, NumberAt(line, "samples")});
  series.Put("loss", NumberAt(line, "loss"), true);
  series.Put("auc", NumberAt(line, "auc"), true);
  series.Put("learning_rate", NumberAt(line, "learning_rate"), false);
  series.Put("samples_per_s", NumberAt(line, "samples_per_s"), true);
  series.Put("bytes_pulled", NumberAt(line, "bytes_pulled_per_step"), true);
  series.Put("bytes_pushed", NumberAt(line, "bytes_pushed_per_step"), true);
  if (const auto cache = line.find("cache"); cache != line.end()) {
    series.Put("hit_rate", NumberAt(*cache, "hit_rate"), true);
  }
  const auto stages = line.find("stages_us_per_step");
  if (stages != line.end() && stages->is_object()) {
    for (const auto& [name, micros] : stages->items()) {
      // Stages ahead run beside the training thread: they are no part of a step's time.
      if (absl::EndsWith(name, "(ahead)") || !micros.is_number()) continue;
      series.Put(absl::StrCat("stage ", name), micros.get<double>(), false);
    }
  }
  history_.phase.clear();
}

void HistoryReader::TakeWorkers(const Json& line) {
  Series& series = history_.workers;
  series.Begin({*NumberAt(line, "step"), history_.t, std::nullopt});
  series.Put("bytes_pulled", NumberAt(line, "bytes_pulled_per_step"), true);
  series.Put("bytes_pushed", NumberAt(line, "bytes_pushed_per_step"), true);
  series.Put("bytes_exchanged", NumberAt(line, "bytes_exchanged_per_step"), true);
  series.Put("hit_rate", NumberAt(line, "hit_rate"), true);
  series.Put("slowest_share", NumberAt(line, "slowest_share"), true);
}

void HistoryReader::TakeEvaluation(const Json& line) {
  const double step = *NumberAt(line, "step") + 1;
  history_.evaluations.Add({step, history_.t,
                            Picked(line, {"pass", "auc", "gauc", "logloss", "normalized_entropy",
                                          "calibration", "own_metric", "samples", "seconds"})});
  AddMark("evaluations", "eval", DescribeEvent("eval", line));
}

void HistoryReader::TakeDecision(const Json& line) {
  const auto step = NumberAt(line, "step");
  if (!IsTrue(line, "is_best") || !step) return;
  const RunHistory::Row* last = history_.evaluations.last();
  if (last != nullptr && last->step == *step + 1) history_.best = *last;
}

void HistoryReader::TakeCheckpoint(const Json& line) {
  history_.checkpoints.Add({*NumberAt(line, "step") + 1, history_.t,
                            Picked(line, {"name", "bytes", "full", "write_s", "pause_s"})});
  ++history_.num_checkpoints;
  AddMark("checkpoints", "checkpoint", TextAt(line, "name"));
}

// Steps made again replace those that are lost.
void HistoryReader::TakeRollback(const std::string& kind, const Json& line) {
  const double step = *NumberAt(line, "step");
  DropBeyond(step);
  auto& generations = history_.launches.back().generations;
  if (generations.size() >= RunHistory::kMaxGenerations) generations.erase(generations.begin() + 1);
  generations.emplace_back(history_.t, step);
  if (kind != "rollback") return;
  const std::string process = TextAt(line, "process");
  AddMark(process.empty() ? "job" : process, "rollback", TextAt(line, "reason"));
}

void HistoryReader::DropBeyond(double step) {
  ++history_.drops;
  KeepLost(history_.progress.FirstBeyond(step), step);
  history_.progress.Truncate(history_.progress.FirstBeyond(step));
  history_.workers.Truncate(history_.workers.FirstBeyond(step));
  const auto is_lost = [step](const RunHistory::Row& row) { return row.step > step; };
  history_.evaluations.TakeBack(is_lost);
  if (history_.best.has_value() && is_lost(*history_.best)) history_.best.reset();
}

void HistoryReader::KeepLost(size_t first, double step) {
  const Series& series = history_.progress;
  if (first >= series.size()) return;
  const size_t last = series.size() - 1;
  Json lost = {{"from", ShortNumber(step)},
               {"to", ShortNumber(series.place(last).step)},
               {"t0", ShortNumber(series.place(first).t)},
               {"t1", ShortNumber(series.place(last).t)}};
  const size_t every = (last - first) / RunHistory::kMaxLostPoints + 1;
  for (size_t point = first; point <= last; point += every) {
    lost["step"].push_back(ShortNumber(series.place(point).step));
    lost["t"].push_back(ShortNumber(series.place(point).t));
    lost["samples"].push_back(ShortNumber(series.place(point).samples));
    for (const char* name : {"loss", "samples_per_s"}) {
      lost[name].push_back(ShortNumber(series.Mean(point, name)));
    }
  }
  history_.lost.push_back(std::move(lost));
  if (history_.lost.size() > RunHistory::kMaxLost) history_.lost.pop_front();
}

// The file has the first line of a phase and its last.
void HistoryReader::TakePhase(const Json& line) {
  const std::string phase = TextAt(line, "phase");
  const bool has_ended = line.contains("ended");
  history_.phase = has_ended ? "" : phase;
  RunHistory::Lane* const lane = LaneOf("phases");
  if (lane == nullptr) return;
  if (has_ended && lane->open.has_value() && lane->open->text == phase) return CloseSpan(lane);
  CloseSpan(lane);
  const double begin = std::max(base_, history_.t - NumberAt(line, "seconds").value_or(0));
  lane->open = RunHistory::Span{begin, history_.t, "phase", Shortened(phase, kMaxMarkBytes)};
  if (has_ended) CloseSpan(lane);
}

void HistoryReader::TakeSlowHost(const Json& line) {
  RunHistory::Lane* const lane = LaneOf(absl::StrCat("host ", TextAt(line, "host")));
  if (lane == nullptr) return;
  CloseSpan(lane);
  if (!IsTrue(line, "is_slow")) return;
  const std::string text = DescribeEvent("slow_host", line);
  lane->open = RunHistory::Span{history_.t, history_.t, "slow", Shortened(text, kMaxMarkBytes)};
}

void HistoryReader::TakeEnd(const Json& line) {
  RunHistory::Launch& launch = history_.launches.back();
  launch.status = TextAt(line, "status");
  if (launch.status.empty()) launch.status = "UNKNOWN";
  launch.reason = TextAt(line, "reason");
  launch.has_summary = launch.status == "OK" || IsTrue(line, "has_summary");
  for (auto& [name, lane] : history_.lanes) CloseSpan(&lane);
}

// The time line and the list
// ------------------------------------------------------------------------------------------------

RunHistory::Lane* HistoryReader::LaneOf(const std::string& name) {
  const auto found = history_.lanes.find(name);
  if (found != history_.lanes.end()) return &found->second;
  if (history_.lanes.size() < RunHistory::kMaxLanes) return &history_.lanes[name];
  ++history_.lanes_left_out;
  return nullptr;
}

void HistoryReader::AddMark(const std::string& lane, const char* kind, const std::string& text) {
  RunHistory::Lane* const found = LaneOf(lane.empty() ? "job" : lane);
  if (found != nullptr) found->marks.Add({history_.t, kind, Shortened(text, kMaxMarkBytes)});
}

void HistoryReader::CloseSpan(RunHistory::Lane* lane) {
  if (!lane->open.has_value()) return;
  lane->open->end = history_.t;
  lane->spans.Add(*std::move(lane->open));
  lane->open.reset();
}

void HistoryReader::List(const std::string& kind, const Json& line) {
  const bool is_known = history_.event_counts.count(kind) > 0;
  const bool has_room = history_.event_counts.size() < RunHistory::kMaxKinds;
  ++history_.event_counts[is_known || has_room ? kind : "other"];
  if (kind == "started" || (kind == "phase" && !line.contains("ended"))) return;
  RunHistory::Mark event = {history_.t, Shortened(kind, kMaxMarkBytes),
                            Shortened(DescribeEvent(kind, line), kMaxTextBytes)};
  if (history_.first_events.size() < RunHistory::kMaxFirstEvents) {
    history_.first_events.push_back(std::move(event));
    return;
  }
  history_.last_events.push_back(std::move(event));
  if (history_.last_events.size() > RunHistory::kMaxLastEvents) history_.last_events.pop_front();
}

}  // namespace thermocline
