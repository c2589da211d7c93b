#include "deploy/report/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> First(const std::vector<Json>& results, const char* name) {
  for (const Json& result : results) {
    if (const auto value = NumberAt(result, name)) return value;
  }
  return std::nullopt;
}

// The field of the first result that has it; null: none has.
Json FirstJson(const std::vector<Json>& results, const char* name) {
  for (const Json& result : results) {
    if (const auto found = result.find(name); found != result.end()) return *found;
  }
  return nullptr;
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
  // The samples are those of this run only, like the seconds.
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
Json SummarizeCache(const std::vector<Json>& results) {
  const auto hits = SumIn(results, "cache", "hits");
  if (!hits) return nullptr;
  const double loaded = SumIn(results, "cache", "loaded").value_or(0);
  const double bypassed = SumIn(results, "cache", "bypassed").value_or(0);
  const double keys = *hits + loaded + bypassed;
  Json cache;
  cache["mode"] = results.size() < 2 ? "own" : "shared";
  cache["hit_rate"] = keys > 0 ? *hits / keys : 0;
  cache["hits"] = Whole(hits);
  cache["loaded"] = Whole(loaded);
  cache["bypassed"] = Whole(bypassed);
  return cache;
}

// What the workers sent each other, and whom they waited for; null: nothing.
Json SummarizeExchange(const std::vector<Json>& results) {
  std::optional<double> sent;
  std::vector<double> waits(results.size());
  for (const Json& result : results) {
    const auto found = result.find("exchange");
    if (found == result.end() || !found->is_object()) continue;
    sent = sent.value_or(0);
    for (const Json& phase : found->value("phases", Json::array())) {
      *sent += NumberAt(phase, "bytes_sent").value_or(0);
    }
    if (!found->contains("wait_for_rank_s")) continue;
    const Json& of_ranks = (*found)["wait_for_rank_s"];
    for (size_t rank = 0; rank < std::min(of_ranks.size(), waits.size()); ++rank) {
      if (of_ranks[rank].is_number()) waits[rank] += of_ranks[rank].get<double>();
    }
  }
  if (!sent) return nullptr;
  Json exchange;
  exchange["bytes_sent"] = Whole(sent);
  exchange["bytes_sent_again"] = Whole(SumIn(results, "exchange", "bytes_sent_again"));
  exchange["wait_for_rank_s"] = waits;
  const auto slowest = std::max_element(waits.begin(), waits.end());
  exchange["slowest_rank"] = *slowest > 0 ? Json(slowest - waits.begin()) : Json(nullptr);
  return exchange;
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

void ForEachTask(
    const nlohmann::ordered_json& json,
    absl::FunctionRef<void(const std::string& label, const nlohmann::ordered_json&)> on_task) {
  if (!json.is_object()) return;
  const auto tasks = json.find("tasks");
  if (tasks == json.end() || !tasks->is_array()) return;
  for (const Json& task : *tasks) {
    if (task.is_object()) on_task(TextAt(task, "label"), task);
  }
}

Json ParseJson(absl::string_view text) {
  const auto is_kept = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kMaxJsonDepth;
  };
  return Json::parse(text.begin(), text.end(), is_kept, /*allow_exceptions=*/false);
}

Json ReadJsonFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Json json = ParseJson(text);
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
  if (Json tasks = FirstJson(results, "tasks"); !tasks.is_null()) {
    summary["task"] = FirstText(results, "task");
    summary["tasks"] = std::move(tasks);
  }
  if (job.has_worker()) {
    summary["script"] = absl::StrJoin(job.worker().command(), " ");
    summary["skipped_steps"] = Whole(Sum(results, "skipped_steps"));
  }
  if (const std::string& own = job.evaluate().own_metric(); !own.empty()) {
    summary["own_metric"] = {{own, Real(First(results, "own_metric"))}};
  }
  summary["new_samples"] = Whole(Sum(results, "new_samples"));
  summary["samples_per_s"] = Real(SamplesPerSecond(results));
  summary["wall_s"] = std::round(wall_s * 1000) / 1000;
  summary["servers"] = job.cluster().servers();
  summary["workers"] = job.cluster().workers();
  summary["bad_lines"] = Whole(Sum(results, "bad_lines"));
  summary["repeated_headers"] = Whole(Sum(results, "repeated_headers"));
  summary["first_bad_line"] = FirstText(results, "first_bad_line");
  summary["padding_ids"] = Whole(Sum(results, "padding_ids"));
  summary["bytes_pulled"] = Whole(Sum(results, "bytes_pulled"));
  summary["bytes_pushed"] = Whole(Sum(results, "bytes_pushed"));
  for (const char* const name : {"bytes_to_device", "bytes_from_device"}) {
    Json& of_workers = summary[name] = Json::array();
    for (const Json& result : results) of_workers.push_back(Whole(NumberAt(result, name)));
  }
  Json exchange = SummarizeExchange(results);
  Json cache = SummarizeCache(results);
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
       {"new_samples", "samples_per_s", "wall_s", "bad_lines", "first_bad_line", "repeated_headers",
        "padding_ids", "skipped_steps", "server_restarts", "rollbacks", "bytes_pulled",
        "bytes_pushed", "bytes_to_device", "bytes_from_device", "cache", "hot", "exchange"}) {
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
  const bool is_own = !state.own_metric().empty();
  json["metric"] = is_own ? state.own_metric() : Evaluate::Metric_Name(state.metric());
  if (!state.task().empty()) json["task"] = state.task();
  json["evaluations"] = state.evaluations();
  const bool has_best = state.best_step() >= 0;
  json["best_step"] = has_best ? Json(state.best_step()) : Json(nullptr);
  json["best_auc"] =
      has_best && !std::isnan(state.best_auc()) ? Json(state.best_auc()) : Json(nullptr);
  json["best_logloss"] = has_best ? Json(state.best_logloss()) : Json(nullptr);
  if (is_own) json["best_own_metric"] = has_best ? Json(state.best_own()) : Json(nullptr);
  json["best_checkpoint"] =
      state.best_checkpoint().empty() ? Json(nullptr) : Json(state.best_checkpoint());
  json["without_improvement"] = state.without_improvement();
  json["stopped_early"] = stopped_early;
  return json;
}

void AddReadByPacking(const Json& pack, Json* summary) {
  for (const char* const name : {"bad_lines", "repeated_headers", "padding_ids"}) {
    const auto more = NumberAt(pack, name);
    if (more) (*summary)[name] = Whole(NumberAt(*summary, name).value_or(0) + *more);
  }
  const std::string first = TextAt(pack, "first_bad_line");
  if (!first.empty()) (*summary)["first_bad_line"] = first;
}

Json SummarizeHot(const std::vector<Json>& results, const Json& pack) {
  Json hot;
  hot["rows"] = Whole(NumberAt(pack, "hot_rows"));
  const auto samples = pack.find("samples");
  if (samples != pack.end()) {
    const double in_hot = NumberAt(*samples, "hot").value_or(0);
    const double all = in_hot + NumberAt(*samples, "cold").value_or(0);
    hot["sample_share"] = all > 0 ? Json(in_hot / all) : Json(nullptr);
  }
  const Json trained = results.empty() ? Json() : results[0].value("hot", Json());
  if (!trained.is_object()) return hot;
  hot["changes"] = Whole(NumberAt(trained, "changes"));
  hot["rate"] = Real(NumberAt(trained, "rate"));
  return hot;
}

}  // namespace thermocline
