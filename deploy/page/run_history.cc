#include "deploy/page/run_history.h"

// Arrow's libraries export symbols of their own copy of RapidJSON.
#define RAPIDJSON_NAMESPACE rapidjson_of_page
#include <rapidjson/document.h>

#include <algorithm>
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
constexpr char kProgress[] = "progress";
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
  return kind == "workers" || kind == "eval" || kind == "checkpoint" || kind == "rollback" ||
         kind == "resume";
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

class HistoryReader::FastParser {
 public:
  // However deep a line is nested, parsing it takes no stack.
  static constexpr unsigned kFlags =
      rapidjson_of_page::kParseInsituFlag | rapidjson_of_page::kParseIterativeFlag;

  // Whether a line is an event of this kind.
  bool Parse(absl::string_view line, absl::string_view kind) {
    line_.reset();
    pool_.Clear();
    line_.emplace(&pool_);
    text_.assign(line.data(), line.size());
    if (line_->ParseInsitu<kFlags>(text_.data()).HasParseError() || !line_->IsObject())
      return false;
    const auto event = line_->FindMember("event");
    return event != line_->MemberEnd() && event->value.IsString() &&
           absl::string_view(event->value.GetString(), event->value.GetStringLength()) == kind;
  }

  // A finite number of the line.
  std::optional<double> At(const char* name) const { return ValueOf(*line_, name); }
  // The same of an object in it.
  std::optional<double> At(const char* object, const char* name) const {
    const auto found = line_->FindMember(object);
    if (found == line_->MemberEnd() || !found->value.IsObject()) return std::nullopt;
    return ValueOf(found->value, name);
  }
  // Calls `on_number` with the name and value of each number of an object.
  template <typename OnNumber>
  void ForEachOf(const char* object, const OnNumber& on_number) const {
    const auto found = line_->FindMember(object);
    if (found == line_->MemberEnd() || !found->value.IsObject()) return;
    for (const auto& field : found->value.GetObject()) {
      if (!field.value.IsNumber()) continue;
      on_number(absl::string_view(field.name.GetString(), field.name.GetStringLength()),
                field.value.GetDouble());
    }
  }

  // Calls `on_figure` with the label of each of the line's "tasks", and a figure of it.
  template <typename OnFigure>
  void ForEachTask(const char* name, const OnFigure& on_figure) const {
    const auto found = line_->FindMember("tasks");
    if (found == line_->MemberEnd() || !found->value.IsArray()) return;
    for (const auto& task : found->value.GetArray()) {
      if (!task.IsObject()) continue;
      const auto label = task.FindMember("label");
      if (label == task.MemberEnd() || !label->value.IsString()) continue;
      on_figure(std::string(label->value.GetString(), label->value.GetStringLength()),
                ValueOf(task, name));
    }
  }

 private:
  static std::optional<double> ValueOf(const rapidjson_of_page::Value& object, const char* name) {
    const auto found = object.FindMember(name);
    if (found == object.MemberEnd() || !found->value.IsNumber()) return std::nullopt;
    return found->value.GetDouble();  // JSON has none that is not finite.
  }

  std::string text_;  // The texts of line_ lie in it.
  rapidjson_of_page::MemoryPoolAllocator<> pool_;
  std::optional<rapidjson_of_page::Document> line_;
};

HistoryReader::HistoryReader() : fast_(std::make_unique<FastParser>()) {}
HistoryReader::~HistoryReader() = default;
HistoryReader::HistoryReader(HistoryReader&&) noexcept = default;
HistoryReader& HistoryReader::operator=(HistoryReader&&) noexcept = default;

// The file
// ------------------------------------------------------------------------------------------------

bool HistoryReader::Follow(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < offset_) {
    const uint64_t drops = history_.drops + 1;
    *this = HistoryReader();
    history_.drops = drops;
  }
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
  if (TakeFast(line)) return;
  if (!TakeEvent(ParseJson(line))) ++history_.bad_lines;
}

// Events
// ------------------------------------------------------------------------------------------------

bool HistoryReader::TakeFast(absl::string_view line) {
  if (!fast_->Parse(line, kProgress)) return false;
  const auto wall_s = fast_->At("wall_s");
  if (!wall_s || !fast_->At("step")) return false;
  LaunchOf(kProgress, *wall_s).has_trained = true;
  TakeProgress(*fast_);
  return true;
}

bool HistoryReader::TakeEvent(const Json& line) {
  const auto wall_s = NumberAt(line, "wall_s");
  const std::string kind = wall_s ? TextAt(line, "event") : "";
  if (kind.empty() || kind == kProgress) return false;
  if (NeedsStep(kind) && !NumberAt(line, "step").has_value()) return false;
  RunHistory::Launch& launch = LaunchOf(kind, *wall_s);
  if (kind == "started") TakeStart(line);
  if (kind != "started" && kind != "pack") launch.has_trained = true;
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

RunHistory::Launch& HistoryReader::LaunchOf(const std::string& kind, double wall_s) {
  if (BeginsLaunch(kind, wall_s)) BeginLaunch();
  history_.t = std::max(history_.t, base_ + wall_s);
  RunHistory::Launch& launch = history_.launches.back();
  launch.end = history_.t;
  return launch;
}

void HistoryReader::BeginLaunch() {
  for (auto& [name, lane] : history_.lanes) CloseSpan(&lane);
  base_ = history_.t;
  double last_step = 0;
  if (history_.last_progress.has_value()) last_step = history_.last_progress->step;
  RunHistory::Launch launch;
  launch.begin = launch.end = base_;
  launch.generations = {{base_, last_step}};
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

void HistoryReader::TakeProgress(const FastParser& line) {
  history_.phase.clear();
  Series& series = history_.progress;
  const double step = *line.At("step");
  // A run that was begun anew, without a line that says so.
  if (!series.empty() && series.place(series.size() - 1).step > step) DropBeyond(step - 1);
  // A launch that had nothing left to train says where it stands.
  const bool is_there = !series.empty() && series.place(series.size() - 1).step == step;
  if (is_there && !line.At("loss").has_value()) return;
  LastProgress& last = history_.last_progress.emplace();
  last = {step, line.At("samples"), line.At("samples_per_s"), line.At("fraction"), line.At("loss")};
  series.Begin({step, history_.t, last.samples});
  series.Put("loss", last.loss, true);
  series.Put("auc", line.At("auc"), true);
  series.Put("learning_rate", line.At("learning_rate"), false);
  series.Put("samples_per_s", last.samples_per_s, true);
  series.Put("bytes_pulled", line.At("bytes_pulled_per_step"), true);
  series.Put("bytes_pushed", line.At("bytes_pushed_per_step"), true);
  series.Put("hit_rate", line.At("cache", "hit_rate"), true);
  line.ForEachOf("stages_us_per_step", [&series](absl::string_view name, double micros) {
    // Stages ahead run beside the training thread: they are no part of a step's time.
    if (!absl::EndsWith(name, "(ahead)")) series.Put(absl::StrCat("stage ", name), micros, false);
  });
  for (const char* const figure : {"loss", "auc"}) {
    line.ForEachTask(figure, [&](const std::string& label, std::optional<double> value) {
      series.Put(absl::StrCat(figure, " of ", label), value, true);
    });
  }
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
  history_.evaluations.Add(
      {step, history_.t,
       Picked(line, {"pass", "auc", "gauc", "logloss", "normalized_entropy", "calibration",
                     "own_metric", "samples", "seconds", "tasks"})});
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

RunHistory::Lane* HistoryReader::LaneOf(const std::string& whole_name) {
  const std::string name = Shortened(whole_name, kMaxMarkBytes);
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
  ++history_.event_counts[is_known || has_room ? Shortened(kind, kMaxMarkBytes) : "other"];
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
