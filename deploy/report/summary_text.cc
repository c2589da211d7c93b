// What the console says of a summary, and of evaluations.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/report/format.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// In place of the metrics of a task.
constexpr char kNoLabel[] = "n/a (no row has the label)";

std::string Fixed(const Json& summary, const char* name, int digits) {
  const auto value = NumberAt(summary, name);
  return value ? absl::StrFormat("%.*f", digits, *value) : "unknown";
}

std::string Count(const Json& summary, const char* name) {
  const auto value = NumberAt(summary, name);
  return value ? FormatCount(static_cast<uint64_t>(*value)) : "unknown";
}

// The AUC, or why there is none.
std::string AucText(double auc) {
  return std::isnan(auc) ? "n/a (only one class)" : absl::StrFormat("%.4f", auc);
}

// "AUC 0.7512  logloss 0.4902"
std::string AucAndLogloss(double auc, double logloss) {
  return absl::StrFormat("AUC %s  logloss %.4f", AucText(auc), logloss);
}

// "click: " where there are several tasks. Behind it, the script's own metric, if there is one; a
// script may score with that alone.
std::string Scores(absl::string_view task, absl::string_view own_metric, double own, double auc,
                   double logloss) {
  if (!task.empty()) {
    return absl::StrCat(task, ": ", std::isnan(logloss) ? kNoLabel : AucAndLogloss(auc, logloss));
  }
  if (own_metric.empty()) return AucAndLogloss(auc, logloss);
  const std::string text = absl::StrFormat("%s %.6g", own_metric, own);
  return std::isnan(logloss) ? text : absl::StrCat(text, "  ", AucAndLogloss(auc, logloss));
}

// Whether held-out rows were scored. Their AUC may be null nevertheless.
bool HasScore(const Json& summary) {
  return NumberAt(summary, "auc") || NumberAt(summary, "eval_samples").value_or(0) > 0;
}

// "hit_rate 0.31": the last value of the script's own metric; "": there is none.
std::string OwnScore(const Json& summary) {
  const Json own = summary.value("own_metric", Json());
  if (!own.is_object() || own.empty() || !own.front().is_number()) return "";
  return absl::StrFormat("%s %.6g", own.items().begin().key(), own.front().get<double>());
}

// What each task's metrics say; those of a single task are the summary's own.
Json TasksOf(const Json& summary) {
  const auto tasks = summary.find("tasks");
  const bool has_several = tasks != summary.end() && tasks->is_array();
  return has_several ? *tasks : Json::array({summary});
}

// Lines that warn of metrics which say that something is wrong. `metrics`: a task's.
void AppendDoubts(const Json& metrics, std::string* text) {
  const std::string label = TextAt(metrics, "label");
  const std::string of_label = label.empty() ? "" : absl::StrCat(" of '", label, "'");
  // A label that no row has is said in its task's line.
  if (!NumberAt(metrics, "auc") && (label.empty() || NumberAt(metrics, "logloss"))) {
    // The calibration is a ratio to the mean label.
    const char* const only = NumberAt(metrics, "calibration") ? "1" : "0";
    absl::StrAppend(text, "warning: every held-out label", of_label, " is ", only,
                    ", so they say nothing of the model: are the rows sorted by the label? "
                    "data.label.positive names the texts that are a 1\n");
  }
  if (NumberAt(metrics, "normalized_entropy").value_or(0) > 1) {
    absl::StrAppend(text, "warning: a normalized entropy", of_label,
                    " above 1 is worse than that of a model "
                    "which knows the rate of 1s alone; a lower learning rate, warm-up or shuffled "
                    "rows may help\n");
  }
}

// The scores, or why there are none.
std::string ScoreLine(const Json& summary) {
  const std::string own = OwnScore(summary);
  if (!IsScored(summary)) {
    return summary.contains("script")
               ? "no row was scored: none was held out (data.split, data.test), or the script did "
                 "not evaluate at its end\n"
               : "no row was held out (data.split, data.test), so none was scored\n";
  }
  if (!HasScore(summary)) return own + "\n";
  std::string line =
      absl::StrCat(own, own.empty() ? "" : "  ", RenderScores(summary, "held-out samples"), "\n");
  for (const Json& of_task : TasksOf(summary)) AppendDoubts(of_task, &line);
  return line;
}

// The best of several evaluations; "" where there was only one.
std::string BestLine(const Json& summary) {
  const auto found = summary.find("evaluations");
  if (found == summary.end() || !found->is_object()) return "";
  const Json& best = *found;
  if (!NumberAt(best, "best_step")) return "";  // None had a value of the metric.
  const auto number = [&](const char* name) { return NumberAt(best, name).value_or(std::nan("")); };
  const std::string own = best.contains("best_own_metric") ? TextAt(best, "metric") : "";
  std::string line = absl::StrCat("best ",
                                  Scores(TextAt(best, "task"), own, number("best_own_metric"),
                                         number("best_auc"), number("best_logloss")),
                                  "  after step ", Fixed(best, "best_step", 0));
  const auto checkpoint = best.find("best_checkpoint");
  if (checkpoint != best.end() && checkpoint->is_string()) {
    absl::StrAppend(&line, ", checkpoint ", checkpoint->get<std::string>());
  }
  const auto stopped = best.find("stopped_early");
  if (stopped != best.end() && *stopped == true) {
    absl::StrAppend(&line, "; training ended early, ", Count(best, "without_improvement"),
                    " evaluations brought nothing better");
  }
  return line + "\n";
}

std::string DigestLine(const Json& summary) {
  const auto digest = summary.find("model_digest");
  const bool is_known = digest != summary.end() && digest->is_string();
  return absl::StrCat("model digest ", is_known ? digest->get<std::string>() : "unknown", "\n");
}

// "3 things"; "" where there is none.
std::string Counted(const Json& json, const char* name, const char* one, const char* many) {
  const auto count = static_cast<uint64_t>(NumberAt(json, name).value_or(0));
  return count == 0 ? "" : absl::StrCat(FormatCount(count), " ", count == 1 ? one : many);
}

// "1 rollback, 2 restarts of servers, 5 checkpoints, the last step-000000999"; "" where nothing
// of it happened.
std::string HistoryLine(const Json& summary) {
  std::vector<std::string> events = {
      Counted(summary, "rollbacks", "rollback", "rollbacks"),
      Counted(summary, "server_restarts", "restart of a server", "restarts of servers")};
  const auto checkpoints = summary.find("checkpoints");
  if (checkpoints != summary.end() && checkpoints->is_object()) {
    events.push_back(Counted(*checkpoints, "committed", "checkpoint", "checkpoints"));
    const auto last = checkpoints->find("last");
    if (last != checkpoints->end() && last->is_string()) {
      events.push_back("the last " + last->get<std::string>());
    }
  }
  events.erase(std::remove(events.begin(), events.end(), ""), events.end());
  return events.empty() ? "" : absl::StrJoin(events, ", ") + "\n";
}

// Why the last step has no checkpoint; "" where it has one, or where none was wanted.
std::string MissingLine(const Json& summary) {
  const auto checkpoints = summary.find("checkpoints");
  if (checkpoints == summary.end() || !checkpoints->is_object()) return "";
  const auto missing = checkpoints->find("missing");
  if (missing == checkpoints->end() || !missing->is_string()) return "";
  return absl::StrCat("the checkpoint of the last step is missing: ", missing->get<std::string>(),
                      "\n");
}

// "cache hits 61.2%, 1.2 GiB exchanged between workers, which waited most for worker 2 (12.3 s)";
// "" where there is neither.
std::string ExchangeLine(const Json& summary) {
  std::vector<std::string> parts;
  if (const auto cache = summary.find("cache"); cache != summary.end()) {
    parts.push_back(
        absl::StrFormat("cache hits %.1f%%", 100 * NumberAt(*cache, "hit_rate").value_or(0)));
  }
  if (const auto exchange = summary.find("exchange"); exchange != summary.end()) {
    const auto sent = static_cast<uint64_t>(NumberAt(*exchange, "bytes_sent").value_or(0));
    parts.push_back(absl::StrCat(FormatBytes(sent), " exchanged between workers"));
    if (const auto slowest = NumberAt(*exchange, "slowest_rank")) {
      const auto rank = static_cast<size_t>(*slowest);
      parts.back() += absl::StrFormat(", which waited most for worker %d (%.1f s)", rank,
                                      (*exchange)["wait_for_rank_s"][rank].get<double>());
    }
  }
  return parts.empty() ? "" : absl::StrJoin(parts, ", ") + "\n";
}

// "1,200 hot rows, 63.0% of the samples in hot batches, 12 changes, ..."; "" where there are none.
std::string HotLine(const Json& summary) {
  const Json hot = summary.value("hot", Json());
  if (!hot.is_object()) return "";
  std::string line = Counted(hot, "rows", "hot row", "hot rows");
  if (const auto share = NumberAt(hot, "sample_share")) {
    absl::StrAppendFormat(&line, ", %.1f%% of the samples in hot batches", 100 * *share);
  }
  if (const auto rate = NumberAt(hot, "rate")) {
    const auto changes = static_cast<uint64_t>(NumberAt(hot, "changes").value_or(0));
    absl::StrAppendFormat(&line, ", %d changes, the last rate %.4g%%", changes, *rate);
  }
  return line + "\n";
}

}  // namespace

bool IsScored(const Json& summary) { return HasScore(summary) || !OwnScore(summary).empty(); }

std::string DescribeChange(const ScheduleState& next, std::optional<double> rate_before) {
  std::string line =
      absl::StrFormat("%s batches from step %d on, after a loss of %.4f on held-out rows",
                      next.is_hot() ? "hot" : "cold", next.first_step(), next.logloss());
  if (!rate_before || *rate_before == next.rate()) {
    return absl::StrFormat("%s; the rate is %.4g%%", line, next.rate());
  }
  return absl::StrFormat("%s; the rate is %.4g%%, and was %.4g%%", line, next.rate(), *rate_before);
}

std::string DescribeEvaluation(const EvaluationEvent& event, uint32_t patience) {
  const EvaluationReport& report = event.report;
  const EvaluationState& state = event.state;
  std::string line = absl::StrFormat(
      "evaluation after step %d (pass %d): %s", report.step.value(), report.pass,
      Scores(state.task(), state.own_metric(), report.own_metric, report.auc, report.logloss));
  for (const EvaluationReport::Task& task : report.other_tasks) {
    absl::StrAppend(&line, ", ", Scores(task.label, "", 0, task.auc, task.logloss));
  }
  if (!event.decision.is_best) {
    if (state.best_step() >= 0) {
      absl::StrAppendFormat(&line, "; the best is %s after step %d",
                            Scores(state.task(), state.own_metric(), state.best_own(),
                                   state.best_auc(), state.best_logloss()),
                            state.best_step());
    }
    if (patience > 0) {
      absl::StrAppendFormat(&line, " (%d of %d without improvement)", state.without_improvement(),
                            patience);
    }
  } else if (!event.checkpoint_error.ok()) {
    absl::StrAppend(&line, "; the best so far, but its checkpoint can't be made: ",
                    event.checkpoint_error.message());
  } else if (state.best_checkpoint().empty()) {
    absl::StrAppend(&line, "; the best so far");
  } else {
    absl::StrAppend(&line, "; the best so far, kept as ", state.best_checkpoint());
  }
  if (event.decision.stops) absl::StrAppend(&line, "; training ends");
  return line;
}

std::string RenderScores(const Json& summary, const char* samples) {
  std::vector<std::string> lines;
  for (const Json& metrics : TasksOf(summary)) {
    const bool is_one = !metrics.contains("label");
    const char* const count = is_one ? "eval_samples" : "samples";
    std::string line = is_one ? "" : absl::StrCat(TextAt(metrics, "label"), ": ");
    if (!is_one && !NumberAt(metrics, "logloss")) {
      lines.push_back(absl::StrCat(line, kNoLabel));
      continue;
    }
    absl::StrAppend(&line, "AUC ", AucText(NumberAt(metrics, "auc").value_or(std::nan(""))));
    const auto add = [&](const char* name, const char* words) {
      if (NumberAt(metrics, name)) {
        absl::StrAppend(&line, "  ", words, " ", Fixed(metrics, name, 4));
      }
    };
    add("gauc", "GAUC");
    absl::StrAppend(&line, "  logloss ", Fixed(metrics, "logloss", 4));
    add("normalized_entropy", "normalized entropy");
    add("calibration", "calibration");
    if (NumberAt(metrics, count)) {
      absl::StrAppend(&line, "  on ", Count(metrics, count), " ", samples);
    }
    lines.push_back(std::move(line));
  }
  return absl::StrJoin(lines, "\n");
}

std::string RenderEvaluation(const Json& summary) {
  return ScoreLine(summary) + DigestLine(summary);
}

std::string RenderSummary(const Json& summary) {
  std::string text = ScoreLine(summary) + BestLine(summary);
  absl::StrAppend(&text, Count(summary, "steps"), " steps, ", Count(summary, "samples"),
                  " samples");
  if (NumberAt(summary, "samples_per_s")) {
    // The others are of an earlier launch, or of before a rollback.
    const bool is_part = NumberAt(summary, "new_samples").value_or(INFINITY) <
                         NumberAt(summary, "samples").value_or(0);
    if (is_part) absl::StrAppend(&text, ", the last ", Count(summary, "new_samples"));
    absl::StrAppend(&text, is_part ? " at " : ", ", Fixed(summary, "samples_per_s", 0),
                    " samples/s");
  }
  absl::StrAppend(&text, "; ", Fixed(summary, "wall_s", 1), " s in all\n");
  if (NumberAt(summary, "bad_lines").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "bad_lines"), " malformed lines were skipped");
    const Json& first = summary["first_bad_line"];
    if (first.is_string()) absl::StrAppend(&text, "; ", first.get<std::string>());
    absl::StrAppend(&text, "\n");
  }
  if (NumberAt(summary, "repeated_headers").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "repeated_headers"),
                    " lines were the header again, and were skipped\n");
  }
  if (NumberAt(summary, "padding_ids").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "padding_ids"), " ids were padding\n");
  }
  if (NumberAt(summary, "skipped_steps").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "skipped_steps"), " steps were skipped by the script\n");
  }
  absl::StrAppend(&text, HotLine(summary), ExchangeLine(summary), HistoryLine(summary),
                  MissingLine(summary), DigestLine(summary));
  return text;
}

}  // namespace thermocline
