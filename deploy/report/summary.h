// The result of a run, made from what the workers reported.
#ifndef THERMOCLINE_DEPLOY_REPORT_SUMMARY_H_
#define THERMOCLINE_DEPLOY_REPORT_SUMMARY_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "deploy/job/evaluations.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// The finite number called `name` of an object that another program wrote. nullopt where it is
// missing or has another type.
std::optional<double> NumberAt(const nlohmann::ordered_json& json, const char* name);
// The text called `name`; "" where it is missing, has another type, or `json` is no object.
std::string TextAt(const nlohmann::ordered_json& json, const char* name);
// Calls on_task for each of the line's or summary's "tasks": a model has several, or there are
// none.
void ForEachTask(
    const nlohmann::ordered_json& json,
    absl::FunctionRef<void(const std::string& label, const nlohmann::ordered_json& figures)>
        on_task);
// The JSON of a text that may be anything; discarded where it is none. What is nested deeper than
// kMaxJsonDepth is left out, since JSON is copied and written recursively.
inline constexpr int kMaxJsonDepth = 64;
nlohmann::ordered_json ParseJson(absl::string_view text);
// The object that a file holds, as ParseJson has it; null where there is none, or no JSON.
nlohmann::ordered_json ReadJsonFile(const std::string& path);

// 32 hexadecimal digits, the high half first.
std::string DigestText(const Digest& digest);

// What a worker left as its result: one JSON object. `file` is where it belongs, for messages.
// Errors: kDataLoss (nothing, or no object; names the file).
absl::StatusOr<nlohmann::ordered_json> ParseWorkerResult(const std::string& text,
                                                         const std::string& file);

// The object of summary.json: job, steps, samples, auc, gauc, logloss, normalized_entropy,
// calibration, eval_samples, new_samples, samples_per_s, wall_s, servers, workers, model_digest,
// bad_lines, first_bad_line, repeated_headers, bytes_pulled, bytes_pushed; by worker
// bytes_to_device, bytes_from_device. What no worker reported is null. Where workers have a cache
// or exchange rows also "cache" (mode: "own", "shared"; hit_rate, hits, loaded, bypassed) and
// "exchange" (bytes_sent, bytes_sent_again, wait_for_rank_s, slowest_rank), summed over them. A job
// whose model is a script also has "script", its command, and with evaluate.own_metric
// "own_metric", an object of the metric's name and its last value.
//   steps: the most of any worker; samples, bad_lines, repeated_headers: summed;
//   auc .. calibration, eval_samples, task, tasks, first_bad_line: the first worker's that has
//   them; auc and others are null, too, where the held-out rows have one class only;
//   samples_per_s: the samples that the workers' processes trained (new_samples: neither those
//   before a resume nor, after a rollback, those of earlier generations) over the longest
//   "train_s", else the sum of the workers' rates; null where this run trained nothing.
nlohmann::ordered_json MakeSummary(const Job& job,
                                   const std::vector<nlohmann::ordered_json>& results,
                                   const std::optional<Digest>& digest, double wall_s);

// Whether any worker trained a step of this run: a job that is done and resumed has none left.
bool TrainedAnything(const std::vector<nlohmann::ordered_json>& results);

// For a run that trained nothing: the counts of the one before, whose summary is `before`, in place
// of its own (new_samples, samples_per_s, wall_s, bad_lines, first_bad_line, repeated_headers,
// padding_ids, skipped_steps, server_restarts, rollbacks, bytes_pulled, bytes_pushed,
// bytes_to_device, bytes_from_device, cache, exchange, checkpoints.committed and called_off), and
// its evaluations where this run made none. False, and nothing is changed, where `before` is of
// another step.
bool KeepCounts(const nlohmann::ordered_json& before, nlohmann::ordered_json* summary);

// The object "evaluations" of the summary: metric, evaluations, best_step, best_auc, best_logloss
// (null: none had a value of the metric), with a metric of the script's own, whose name is
// `metric`, best_own_metric, then best_checkpoint (null: none is kept), without_improvement,
// stopped_early.
nlohmann::ordered_json SummarizeEvaluations(const EvaluationState& state, bool stopped_early);

// The object "hot" of the summary of a job with hot and cold batches: rows, sample_share (of those
// in hot batches; null: not known), changes (in this run, as worker 0 saw them), rate (the last, in
// percent). `pack`: what thermocline-pack found.
nlohmann::ordered_json SummarizeHot(const std::vector<nlohmann::ordered_json>& results,
                                    const nlohmann::ordered_json& pack);

// Adds to bad_lines, first_bad_line and padding_ids of the summary of a job with hot and cold
// batches what thermocline-pack met of them: its workers read no more than the held-out rows
// themselves.
void AddReadByPacking(const nlohmann::ordered_json& pack, nlohmann::ordered_json* summary);

// A change between hot and cold batches, in a line for the console. `rate_before`: none before the
// first.
std::string DescribeChange(const ScheduleState& next, std::optional<double> rate_before);

// An evaluation while the job trains, and what follows from it, in a line for the console.
std::string DescribeEvaluation(const EvaluationEvent& event, uint32_t patience);

// "AUC 0.7512  logloss 0.4902 ...  on 2,000 held-out samples", of several tasks a line each, which
// begins with its label: the metrics of a summary, or of what
// another program has scored. `samples`: what they are called.
std::string RenderScores(const nlohmann::ordered_json& summary, const char* samples);

// Whether the summary has scores of held-out rows, by a script's own metric at least.
bool IsScored(const nlohmann::ordered_json& summary);

// What a model that was only evaluated is worth, in a few lines for the console.
std::string RenderEvaluation(const nlohmann::ordered_json& summary);

// The summary in a few lines for the console.
std::string RenderSummary(const nlohmann::ordered_json& summary);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_SUMMARY_H_
