#include "deploy/page/run_document.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxJobBytes = 256 << 10;
constexpr size_t kMaxLanesShown = 40;

// The name in the job file; else that of the summary; else `label`.
std::string JobNameOf(const RunFiles& files, const std::string& label) {
  if (files.job.has_value() && !files.job->name().empty()) return files.job->name();
  const std::string name = TextAt(files.summary, "job");
  return name.empty() ? label : name;
}

Json JobOf(const RunFiles& files, const std::string& label) {
  const std::string& text = files.job_text;
  return {{"name", JobNameOf(files, label)},
          {"text", text.empty() ? Json() : Json(text.substr(0, kMaxJobBytes))}};
}

// The value of a column: its name is a text, all else numbers or whether something is so.
Json ColumnValue(const Json& line, const std::string& name) {
  const auto found = line.find(name);
  if (found == line.end()) return Json();
  if (name == "name" ? found->is_string() : found->is_boolean()) return *found;
  if (name == "name" || !found->is_number()) return Json();
  return found->is_number_float() ? ShortNumber(found->get<double>()) : *found;
}

// Rows as columns "step", "t" and `names`.
Json ColumnsOf(const std::vector<RunHistory::Row>& rows, std::initializer_list<const char*> names) {
  Json columns = {{"step", Json::array()}, {"t", Json::array()}};
  for (const char* name : names) columns[name] = Json::array();
  for (const RunHistory::Row& row : rows) {
    columns["step"].push_back(ShortNumber(row.step));
    columns["t"].push_back(ShortNumber(row.t));
    for (const char* name : names) {
      columns[name].push_back(ColumnValue(row.line, name));
    }
  }
  return columns;
}

Json EvaluationColumns(const RunHistory& history) {
  std::vector<RunHistory::Row> rows = history.evaluations.Items();
  const auto beyond = [](double step, const RunHistory::Row& row) { return step < row.step; };
  if (history.best.has_value()) {  // It may be one that was left out.
    const double step = history.best->step;
    const auto after = std::upper_bound(rows.begin(), rows.end(), step, beyond);
    if (after == rows.begin() || std::prev(after)->step != step) rows.insert(after, *history.best);
  }
  Json columns = ColumnsOf(rows, {"pass", "auc", "gauc", "logloss", "normalized_entropy",
                                  "calibration", "own_metric", "samples", "seconds"});
  // "auc of click": of each of several tasks.
  if (!rows.empty()) {
    ForEachTask(rows.back().line, [&](const std::string& label, const Json&) {
      for (const char* const name :
           {"auc", "gauc", "logloss", "normalized_entropy", "calibration"}) {
        Json& column = columns[absl::StrCat(name, " of ", label)] = Json::array();
        for (const RunHistory::Row& row : rows) {
          Json value;
          ForEachTask(row.line, [&](const std::string& of, const Json& figures) {
            if (of == label) value = ColumnValue(figures, name);
          });
          column.push_back(std::move(value));
        }
      }
    });
  }
  columns["is_best"] = Json::array();
  for (const RunHistory::Row& row : rows) {
    columns["is_best"].push_back(history.best.has_value() && row.step == history.best->step);
  }
  return columns;
}

Json LaunchesOf(const RunHistory& history) {
  Json launches = Json::array();
  for (const RunHistory::Launch& launch : history.launches) {
    Json generations = Json::array();
    for (const auto& [t, step] : launch.generations) {
      generations.push_back({ShortNumber(t), ShortNumber(step)});
    }
    const bool has_ended = !launch.status.empty();
    launches.push_back({{"t0", ShortNumber(launch.begin)},
                        {"t1", ShortNumber(launch.end)},
                        {"began", ShortNumber(launch.began_at)},
                        {"host", launch.host},
                        {"version", launch.version},
                        {"status", has_ended ? Json(launch.status) : Json()},
                        {"reason", has_ended ? Json(launch.reason) : Json()},
                        {"generations", std::move(generations)}});
  }
  return launches;
}

// "server 2" before "server 10".
std::string SortKey(const std::string& name) {
  static constexpr const char* kFirst[] = {"phases", "evaluations", "checkpoints", "warnings",
                                           "job"};
  std::string key = "9";
  for (int i = 0; i < 5; ++i) {
    if (name == kFirst[i]) key = absl::StrCat(i);
  }
  const size_t digit = std::min(name.find_last_not_of("0123456789") + 1, name.size());
  const std::string number = name.substr(digit);
  return absl::StrCat(key, name.substr(0, digit),
                      std::string(number.size() < 9 ? 9 - number.size() : 0, '0'), number);
}

Json LaneOf(const std::string& name, const RunHistory::Lane& lane, double now,
            const RunFiles& files) {
  Json marks = Json::array(), spans = Json::array();
  for (const RunHistory::Mark& mark : lane.marks.Items()) {
    marks.push_back({ShortNumber(mark.t), mark.kind, mark.text});
  }
  const auto add = [&spans](const RunHistory::Span& span, double end) {
    spans.push_back({ShortNumber(span.begin), ShortNumber(end), span.kind, span.text});
  };
  for (const RunHistory::Span& span : lane.spans.Items()) add(span, span.end);
  if (lane.open.has_value()) add(*lane.open, now);
  const auto host = files.hosts.find(name);
  return {{"name", name},
          {"host", host == files.hosts.end() ? Json() : Json(host->second)},
          {"marks", std::move(marks)},
          {"spans", std::move(spans)},
          {"count", lane.marks.count() + lane.spans.count()}};
}

void AddLanes(const RunHistory& history, const RunFiles& files, Json* run) {
  std::vector<std::pair<std::string, const RunHistory::Lane*>> lanes;  // by sort key
  std::map<const RunHistory::Lane*, std::string> names;
  for (const auto& [name, lane] : history.lanes) {
    if (lane.marks.empty() && lane.spans.empty() && !lane.open.has_value()) continue;
    lanes.emplace_back(SortKey(name), &lane);
    names[&lane] = name;
  }
  std::sort(lanes.begin(), lanes.end());
  const size_t shown = std::min(lanes.size(), kMaxLanesShown);
  (*run)["lanes"] = Json::array();
  for (size_t i = 0; i < shown; ++i) {
    const RunHistory::Lane& lane = *lanes[i].second;
    (*run)["lanes"].push_back(LaneOf(names[&lane], lane, history.t, files));
  }
  (*run)["lanes_left_out"] = lanes.size() - shown + history.lanes_left_out;
}

Json EventsOf(const RunHistory& history) {
  Json events = Json::array();
  const auto add = [&events](const RunHistory::Mark& event) {
    events.push_back({ShortNumber(event.t), event.kind, event.text});
  };
  for (const RunHistory::Mark& event : history.first_events) add(event);
  for (const RunHistory::Mark& event : history.last_events) add(event);
  return events;
}

Json NotesOf(const RunHistory& history, const RunFiles& files, bool has_metrics) {
  Json notes = Json::array();
  if (!has_metrics || history.num_lines == 0) {
    notes.push_back(absl::StrCat("metrics.jsonl is ", has_metrics ? "empty" : "missing",
                                 ": there are no curves and no time line."));
  }
  if (history.bad_lines > 0) {
    notes.push_back(absl::StrCat(history.bad_lines, history.bad_lines == 1 ? " line" : " lines",
                                 " of metrics.jsonl could not be read and ",
                                 history.bad_lines == 1 ? "was" : "were", " left out."));
  }
  if (history.ends_within_line && !IsRunning(history, files)) {
    notes.push_back(
        "metrics.jsonl ends in the middle of a line; the page shows what is before it.");
  }
  const bool has_summary = !history.launches.empty() && history.launches.back().has_summary;
  std::error_code error;
  if (has_summary && !std::filesystem::exists(files.run_dir + "/summary.json", error)) {
    notes.push_back(
        "summary.json is missing: the figures are those of the last lines of metrics.jsonl.");
  }
  const bool is_of_last_launch = history.launches.empty() || history.launches.back().has_summary;
  if (files.stats_are_left && !files.stats.servers.empty() && !is_of_last_launch) {
    notes.push_back("The figures of tables and processes are those of an earlier launch.");
  }
  for (const std::string& note : files.notes) notes.push_back(note);
  return notes;
}

Json CountOrNull(size_t count) { return count > 0 ? Json(count) : Json(); }

}  // namespace

bool IsRunning(const RunHistory& history, const RunFiles& files) {
  return files.is_locked && (history.launches.empty() || history.launches.back().status.empty());
}

Json MakeRunDocument(const RunHistory& history, const RunFiles& files, bool has_metrics,
                     const std::string& label) {
  const auto& last = history.last_progress;
  Json run;
  run["label"] = label;
  run["run_dir"] = files.run_dir;
  run["job"] = JobOf(files, label);
  run["state"] = DescribeState(history, files);
  run["figures"] = Headline(history, files);
  run["notes"] = NotesOf(history, files, has_metrics);
  run["time_s"] = ShortNumber(history.t);
  run["fraction"] = ShortNumber(last ? last->fraction : std::nullopt);
  run["servers"] = CountOrNull(files.stats.servers.size());
  run["workers"] = CountOrNull(files.stats.workers.size());
  run["progress"] = history.progress.ToJson();
  run["workers_series"] = history.workers.empty() ? Json() : history.workers.ToJson();
  run["evals"] = EvaluationColumns(history);
  run["checkpoints"] =
      ColumnsOf(history.checkpoints.Items(), {"name", "bytes", "full", "write_s", "pause_s"});
  run["lost"] = history.lost;
  run["launches"] = LaunchesOf(history);
  run["num_launches"] = history.num_launches;
  AddLanes(history, files, &run);
  run["events"] = EventsOf(history);
  run["event_counts"] = history.event_counts;
  run["tables"] = TableColumns(files.stats);
  run["processes"] = ProcessColumns(files);
  run["found"] = FoundInData(history, files);
  return run;
}

}  // namespace thermocline
