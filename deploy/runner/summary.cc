#include "deploy/runner/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> First(const std::vector<Json>& results, const char* name) {
  for (const Json& result : results) {
    if (const auto value = NumberAt(result, name)) return value;
  }
  return std::nullopt;
}

Json FirstText(const std::vector<Json>& results, const char* name) {
  for (const Json& result : results) {
    const auto found = result.find(name);
    if (found != result.end() && found->is_string()) return *found;
  }
  return nullptr;
}

std::optional<double> Sum(const std::vector<Json>& results, const char* name) {
  std::optional<double> sum;
  for (const Json& result : results) {
    if (const auto value = NumberAt(result, name)) sum = sum.value_or(0) + *value;
  }
  return sum;
}

std::optional<double> Largest(const std::vector<Json>& results, const char* name) {
  std::optional<double> largest;
  for (const Json& result : results) {
    if (const auto value = NumberAt(result, name)) {
      largest = std::max(largest.value_or(*value), *value);
    }
  }
  return largest;
}

std::optional<double> SamplesPerSecond(const std::vector<Json>& results) {
  // Of this run only, like the seconds.
  auto samples = Sum(results, "new_samples");
  if (!samples) samples = Sum(results, "samples");
  // Nothing was trained: a complete job was resumed, or it was only evaluated.
  if (samples == 0.0) return std::nullopt;
  const auto seconds = Largest(results, "train_s");
  if (samples && seconds && *seconds > 0) return *samples / *seconds;
  return Sum(results, "samples_per_s");
}

Json Real(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json Whole(std::optional<double> value) {
  return value ? Json(static_cast<uint64_t>(std::llround(std::max(0.0, *value)))) : Json(nullptr);
}

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

// Whether held-out rows were scored. Their AUC may be null nevertheless.
bool HasScore(const Json& summary) {
  return NumberAt(summary, "auc") || NumberAt(summary, "eval_samples").value_or(0) > 0;
}

std::string ScoreLine(const Json& summary) {
  std::string line = absl::StrCat("AUC ", AucText(NumberAt(summary, "auc").value_or(std::nan(""))));
  const auto add = [&](const char* name, const char* words) {
    if (NumberAt(summary, name)) absl::StrAppend(&line, "  ", words, " ", Fixed(summary, name, 4));
  };
  add("gauc", "GAUC");
  absl::StrAppend(&line, "  logloss ", Fixed(summary, "logloss", 4));
  add("normalized_entropy", "normalized entropy");
  add("calibration", "calibration");
  if (NumberAt(summary, "eval_samples")) {
    absl::StrAppend(&line, "  on ", Count(summary, "eval_samples"), " held-out samples");
  }
  absl::StrAppend(&line, "\n");
  if (!NumberAt(summary, "auc")) {
    // The calibration is a ratio to the mean label.
    const char* const label = NumberAt(summary, "calibration") ? "1" : "0";
    absl::StrAppend(&line, "every held-out label is ", label,
                    "; data.label.positive names the texts that are a 1\n");
  }
  return line;
}

// The best of several evaluations; "" where there was only one.
std::string BestLine(const Json& summary) {
  const auto found = summary.find("evaluations");
  if (found == summary.end() || !found->is_object()) return "";
  const Json& best = *found;
  if (!NumberAt(best, "best_step")) return "";  // None had a value of the metric.
  std::string line = absl::StrCat(
      "best AUC ", AucText(NumberAt(best, "best_auc").value_or(std::nan(""))), "  logloss ",
      Fixed(best, "best_logloss", 4), "  after step ", Fixed(best, "best_step", 0));
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

// The sum of a field of an object of each result; nullopt: none has it.
std::optional<double> SumIn(const std::vector<Json>& results, const char* object,
                            const char* name) {
  std::optional<double> sum;
  for (const Json& result : results) {
    const auto found = result.find(object);
    if (found == result.end()) continue;
    if (const auto value = NumberAt(*found, name)) sum = sum.value_or(0) + *value;
  }
  return sum;
}

// What all workers' caches did; null: none has one.
Json SummarizeCache(const std::vector<Json>& results, bool is_shared) {
  const auto hits = SumIn(results, "cache", "hits");
  if (!hits) return nullptr;
  const double loaded = SumIn(results, "cache", "loaded").value_or(0);
  const double bypassed = SumIn(results, "cache", "bypassed").value_or(0);
  const double keys = *hits + loaded + bypassed;
  Json cache;
  cache["mode"] = results.size() < 2 ? "own" : is_shared ? "shared" : "copies";
  cache["hit_rate"] = keys > 0 ? *hits / keys : 0;
  cache["hits"] = Whole(hits);
  cache["loaded"] = Whole(loaded);
  cache["bypassed"] = Whole(bypassed);
  return cache;
}

// What the workers sent each other, and whom they waited for; null: nothing.
Json SummarizeExchange(const std::vector<Json>& results) {
  const auto sent = SumIn(results, "exchange", "bytes_sent");
  if (!sent) return nullptr;
  std::vector<double> waits(results.size());
  for (const Json& result : results) {
    const auto found = result.find("exchange");
    if (found == result.end() || !found->contains("wait_for_rank_s")) continue;
    const Json& of_ranks = (*found)["wait_for_rank_s"];
    for (size_t rank = 0; rank < std::min(of_ranks.size(), waits.size()); ++rank) {
      if (of_ranks[rank].is_number()) waits[rank] += of_ranks[rank].get<double>();
    }
  }
  Json exchange;
  exchange["bytes_sent"] = Whole(sent);
  exchange["bytes_sent_again"] = Whole(SumIn(results, "exchange", "bytes_sent_again"));
  exchange["wait_for_rank_s"] = waits;
  const auto slowest = std::max_element(waits.begin(), waits.end());
  exchange["slowest_rank"] = *slowest > 0 ? Json(slowest - waits.begin()) : Json(nullptr);
  return exchange;
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

}  // namespace

std::optional<double> NumberAt(const nlohmann::ordered_json& json, const char* name) {
  if (!json.is_object()) return std::nullopt;
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

std::string TextAt(const nlohmann::ordered_json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

Json ReadJsonFile(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  return json.is_object() ? json : Json();
}

std::string DigestText(const Digest& digest) {
  return absl::StrFormat("%016x%016x", digest.high, digest.low);
}

absl::StatusOr<Json> ParseWorkerResult(const std::string& text, const std::string& file) {
  if (text.empty()) return absl::DataLossError(absl::StrCat("no worker result for ", file));
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat("the worker result for ", file, " is no JSON object"));
  }
  return json;
}

Json MakeSummary(const Job& job, const std::vector<Json>& results,
                 const std::optional<Digest>& digest, double wall_s) {
  Json summary;
  summary["job"] = job.name();
  summary["steps"] = Whole(Largest(results, "steps"));
  summary["samples"] = Whole(Sum(results, "samples"));
  summary["auc"] = Real(First(results, "auc"));
  summary["gauc"] = Real(First(results, "gauc"));
  summary["logloss"] = Real(First(results, "logloss"));
  summary["normalized_entropy"] = Real(First(results, "normalized_entropy"));
  summary["calibration"] = Real(First(results, "calibration"));
  summary["eval_samples"] = Whole(First(results, "eval_samples"));
  summary["samples_per_s"] = Real(SamplesPerSecond(results));
  summary["wall_s"] = std::round(wall_s * 1000) / 1000;
  summary["servers"] = job.cluster().servers();
  summary["workers"] = job.cluster().workers();
  summary["bad_lines"] = Whole(Sum(results, "bad_lines"));
  summary["first_bad_line"] = FirstText(results, "first_bad_line");
  summary["padding_ids"] = Whole(Sum(results, "padding_ids"));
  summary["bytes_pulled"] = Whole(Sum(results, "bytes_pulled"));
  summary["bytes_pushed"] = Whole(Sum(results, "bytes_pushed"));
  Json exchange = SummarizeExchange(results);
  Json cache = SummarizeCache(results, /*is_shared=*/!exchange.is_null());
  if (!cache.is_null()) summary["cache"] = std::move(cache);
  if (!exchange.is_null()) summary["exchange"] = std::move(exchange);
  summary["model_digest"] = digest ? Json(DigestText(*digest)) : Json(nullptr);
  return summary;
}

bool TrainedAnything(const std::vector<Json>& results) {
  // A worker that reports no number of steps has trained.
  return std::any_of(results.begin(), results.end(), [](const Json& result) {
    return NumberAt(result, "new_samples").value_or(1) > 0;
  });
}

bool KeepCounts(const Json& before, Json* summary) {
  const auto steps = NumberAt(before, "steps");
  if (!steps || steps != NumberAt(*summary, "steps")) return false;
  const auto keep = [](const Json& from, const char* name, Json* to) {
    if (from.contains(name)) (*to)[name] = from[name];
  };
  for (const char* name :
       {"samples_per_s", "wall_s", "bad_lines", "first_bad_line", "padding_ids", "server_restarts",
        "rollbacks", "bytes_pulled", "bytes_pushed", "cache", "exchange"}) {
    keep(before, name, summary);
  }
  if (!summary->contains("evaluations")) keep(before, "evaluations", summary);
  const auto checkpoints = before.find("checkpoints");
  if (checkpoints == before.end() || !checkpoints->is_object()) return true;
  for (const char* name : {"committed", "called_off"}) {
    keep(*checkpoints, name, &(*summary)["checkpoints"]);
  }
  return true;
}

Json SummarizeEvaluations(const EvaluationState& state, bool stopped_early) {
  Json json;
  json["metric"] = Evaluate::Metric_Name(state.metric());
  json["evaluations"] = state.evaluations();
  const bool has_best = state.best_step() >= 0;
  json["best_step"] = has_best ? Json(state.best_step()) : Json(nullptr);
  json["best_auc"] =
      has_best && !std::isnan(state.best_auc()) ? Json(state.best_auc()) : Json(nullptr);
  json["best_logloss"] = has_best ? Json(state.best_logloss()) : Json(nullptr);
  json["best_checkpoint"] =
      state.best_checkpoint().empty() ? Json(nullptr) : Json(state.best_checkpoint());
  json["without_improvement"] = state.without_improvement();
  json["stopped_early"] = stopped_early;
  return json;
}

std::string DescribeEvaluation(const EvaluationEvent& event, uint32_t patience) {
  const EvaluationReport& report = event.report;
  const EvaluationState& state = event.state;
  std::string line =
      absl::StrFormat("evaluation after step %d (pass %d): AUC %s  logloss %.4f",
                      report.step.value(), report.pass, AucText(report.auc), report.logloss);
  if (!event.verdict.is_best) {
    if (state.best_step() >= 0) {
      absl::StrAppendFormat(&line, "; the best is AUC %s  logloss %.4f after step %d",
                            AucText(state.best_auc()), state.best_logloss(), state.best_step());
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
  if (event.verdict.stops) absl::StrAppend(&line, "; training ends");
  return line;
}

std::string RenderEvaluation(const Json& summary) {
  return absl::StrCat(HasScore(summary) ? ScoreLine(summary) : "no held-out samples\n",
                      DigestLine(summary));
}

std::string RenderSummary(const Json& summary) {
  std::string text = HasScore(summary)
                         ? ScoreLine(summary) + BestLine(summary)
                         : "no row was held out (data.split, data.test), so none was scored\n";
  absl::StrAppend(&text, Count(summary, "steps"), " steps, ", Count(summary, "samples"),
                  " samples");
  if (NumberAt(summary, "samples_per_s")) {
    absl::StrAppend(&text, ", ", Fixed(summary, "samples_per_s", 0), " samples/s");
  }
  absl::StrAppend(&text, "; ", Fixed(summary, "wall_s", 1), " s in all\n");
  if (NumberAt(summary, "bad_lines").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "bad_lines"), " malformed lines were skipped");
    const Json& first = summary["first_bad_line"];
    if (first.is_string()) absl::StrAppend(&text, "; ", first.get<std::string>());
    absl::StrAppend(&text, "\n");
  }
  if (NumberAt(summary, "padding_ids").value_or(0) > 0) {
    absl::StrAppend(&text, Count(summary, "padding_ids"), " ids were padding\n");
  }
  absl::StrAppend(&text, ExchangeLine(summary), HistoryLine(summary), MissingLine(summary),
                  DigestLine(summary));
  return text;
}

}  // namespace thermocline
