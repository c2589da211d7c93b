// How a run stands: its state with what to do next, and its figures, as text.
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/engines/scripts.h"
#include "deploy/page/run_document.h"
#include "deploy/report/format.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

Json State(const char* kind, const char* title, const std::string& why, Json next) {
  return {{"kind", kind}, {"title", title}, {"why", why}, {"next", std::move(next)}};
}

Json NextResume(const RunHistory& history, const RunFiles& files) {
  if (const RunHistory::Row* last = history.checkpoints.last()) {
    return {absl::StrCat("Go on from ", TextAt(last->line, "name")), files.resume_command};
  }
  return {
      "There is no checkpoint to go on from; with checkpoint { every_steps: 1000 } in the job "
      "a loss costs at most so many steps",
      nullptr};
}

Json NextLogs(const std::string& run_dir) {
  return {"Read what the processes wrote", absl::StrCat("thermocline logs ", run_dir)};
}

Json DescribeEnd(const RunHistory& history, const RunFiles& files, const std::string& run_dir) {
  const RunHistory::Launch& end = history.launches.back();
  const Json resume = NextResume(history, files), logs = NextLogs(run_dir);
  if (end.status == "OK") {
    const Json evaluations = files.summary.is_object()
                                 ? files.summary.value("evaluations", Json::object())
                                 : Json::object();
    const bool early =
        evaluations.is_object() && evaluations.value("stopped_early", Json()) == true;
    return State(
        "done", "Done",
        early ? "stopped early: the last evaluations brought nothing better" : "trained to its end",
        Json::array(
            {Json{"Score new rows", absl::StrCat("thermocline predict --checkpoint ", run_dir,
                                                 " --data NEW --out scores.csv")},
             Json{"Take the model to PyTorch",
                  absl::StrCat("thermocline checkpoint export ", run_dir, " model.safetensors")}}));
  }
  if (end.status == "CANCELLED") {
    return State("stopped", "Stopped", end.reason, Json::array({resume}));
  }
  Json next = Json::array();
  if (const std::string field = TextAt(history.limit, "field"); !field.empty()) {
    next.push_back(
        {absl::StrFormat("%s allowed no more (%.0f); raise it if the losses were bad luck", field,
                         NumberAt(history.limit, "limit").value_or(0)),
         nullptr});
  }
  // To go on would end the same way.
  const bool is_bad_job = end.status == "INVALID_ARGUMENT";
  next.push_back(is_bad_job ? Json{"Begin a new run, with another job file", nullptr} : resume);
  next.push_back(logs);
  return State("failed", "Failed", absl::StrCat(end.status, ": ", end.reason), std::move(next));
}

// The rows of the headline; one without a value is left out.
class Rows {
 public:
  void Text(const char* name, const std::string& text, const std::string& note = "") {
    if (!text.empty()) rows_.push_back({name, text, note});
  }
  void Real(const char* name, std::optional<double> value, const std::string& note = "") {
    if (value) Text(name, absl::StrFormat("%.4f", *value), note);
  }
  void Count(const char* name, std::optional<double> value, const std::string& note = "") {
    if (!value) return;
    Text(name, FormatCount(static_cast<uint64_t>(std::llround(std::max(0.0, *value)))), note);
  }
  Json Take() { return std::move(rows_); }

 private:
  Json rows_ = Json::array();
};

// Whether summary.json is of the last launch, which trained to its end.
bool HasResult(const RunHistory& history, const RunFiles& files) {
  if (!files.summary.is_object() || IsRunning(history, files)) return false;
  return history.launches.empty() || history.launches.back().has_summary;
}

void AddScores(const Json& source, const std::string& note, Rows* rows) {
  bool has_tasks = false;
  ForEachTask(source, [&](const std::string& label, const Json& task) {
    has_tasks = true;
    const auto add = [&](const char* what, const char* name) {
      rows->Real(absl::StrCat(what, " of ", label).c_str(), NumberAt(task, name), note);
    };
    if (!NumberAt(task, "auc") && !NumberAt(task, "logloss")) {
      return rows->Text(absl::StrCat("AUC of ", label).c_str(), "n/a",
                        "no held-out row has the label");
    }
    add("AUC", "auc");
    add("GAUC", "gauc");
    add("Logloss", "logloss");
    add("Normalized entropy", "normalized_entropy");
    add("Calibration", "calibration");
  });
  if (has_tasks) return;
  rows->Real("AUC", NumberAt(source, "auc"), note);
  rows->Real("GAUC", NumberAt(source, "gauc"), note);
  rows->Real("Logloss", NumberAt(source, "logloss"), note);
  rows->Real("Normalized entropy", NumberAt(source, "normalized_entropy"), note);
  rows->Real("Calibration", NumberAt(source, "calibration"), note);
  const auto own = source.is_object() ? source.find("own_metric") : source.end();
  if (!source.is_object() || own == source.end()) return;
  if (own->is_number()) return rows->Real("Own metric", NumberAt(source, "own_metric"), note);
  if (!own->is_object() || own->empty()) return;
  const std::string name = own->items().begin().key();
  rows->Real(name.c_str(), NumberAt(*own, name.c_str()), note);
}

void AddHistory(const RunHistory& history, Rows* rows) {
  const auto count = [&history](const char* kind) {
    const auto found = history.event_counts.find(kind);
    return found == history.event_counts.end() ? 0.0 : static_cast<double>(found->second);
  };
  if (history.launches.empty()) return;
  const std::string launches =
      history.num_launches > 1 ? absl::StrCat(history.num_launches, " launches") : "";
  rows->Text("Time", FormatSeconds(history.t), launches);
  rows->Count("Server restarts", count("server_restart"));
  rows->Count("Rollbacks", count("rollback"));
  if (const RunHistory::Row* last = history.checkpoints.last()) {
    rows->Count("Checkpoints", static_cast<double>(history.num_checkpoints),
                TextAt(last->line, "name"));
  }
}

void AddResult(const Json& summary, Rows* rows) {
  const auto cache = summary.find("cache");
  if (cache != summary.end()) {
    const auto rate = NumberAt(*cache, "hit_rate");
    if (rate) rows->Text("Hit rate", absl::StrFormat("%.1f%%", 100 * *rate));
  }
  if (NumberAt(summary, "bad_lines").value_or(0) > 0) {
    rows->Count("Bad lines", NumberAt(summary, "bad_lines"), TextAt(summary, "first_bad_line"));
  }
  rows->Text("Model digest", TextAt(summary, "model_digest"));
}

}  // namespace

Json DescribeState(const RunHistory& history, const RunFiles& files) {
  const std::string run_dir = ShellWord(files.run_dir);
  if (IsRunning(history, files)) {
    const std::string doing = history.last_progress.has_value() ? "training" : "starting";
    return State(
        "running", "Running", history.phase.empty() ? doing : history.phase,
        Json::array(
            {Json{"Watch its processes",
                  absl::StrCat("thermocline stats --run-dir ", run_dir, " --watch")},
             Json{"End it with a checkpoint", absl::StrCat("thermocline stop ", run_dir)}}));
  }
  if (history.launches.empty()) {
    return State("unknown", "No record", "this directory has no metrics of a run",
                 Json::array({NextLogs(run_dir)}));
  }
  if (!history.launches.back().status.empty()) return DescribeEnd(history, files, run_dir);
  return State("killed", "Killed",
               "its launcher left no last line: it was killed, or its machine restarted",
               Json::array({NextResume(history, files), NextLogs(run_dir)}));
}

Json Headline(const RunHistory& history, const RunFiles& files) {
  const bool is_final = HasResult(history, files);
  const Json& summary = files.summary;
  const auto progress = history.last_progress.value_or(LastProgress());
  const RunHistory::Row* const last = history.evaluations.last();
  Rows rows;
  if (is_final) {
    AddScores(summary, "", &rows);
    const Json evaluations = summary.value("evaluations", Json());
    const std::string kept = TextAt(evaluations, "best_checkpoint");
    const std::string task = TextAt(evaluations, "task");
    const std::string name = task.empty() ? "Best AUC" : absl::StrCat("Best AUC of ", task);
    if (!kept.empty()) rows.Real(name.c_str(), NumberAt(evaluations, "best_auc"), kept);
  } else {
    if (last != nullptr) AddScores(last->line, "last evaluation", &rows);
    rows.Real("Loss", progress.loss, "last line");
  }
  if (is_final) {
    rows.Count("Steps", NumberAt(summary, "steps"));
    rows.Count("Samples", NumberAt(summary, "samples"));
    rows.Count("Samples/s", NumberAt(summary, "samples_per_s"));
  } else if (history.last_progress.has_value()) {
    const auto& fraction = progress.fraction;
    rows.Count("Steps", progress.step,
               fraction ? absl::StrFormat("%.0f%% of the job", 100 * *fraction) : "");
    rows.Count("Samples", progress.samples);
    rows.Count("Samples/s", progress.samples_per_s, "last line");
  }
  AddHistory(history, &rows);
  if (is_final) AddResult(summary, &rows);
  return rows.Take();
}

}  // namespace thermocline
