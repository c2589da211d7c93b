// The result of a run, made from what the workers reported.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_SUMMARY_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_SUMMARY_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/hash.h"
#include "proto/job.pb.h"

namespace thermocline {

// 32 hexadecimal digits, the high half first.
std::string DigestText(const Digest& digest);

// Reads a worker's result file: one JSON object.
// Errors: kDataLoss (missing or no object; names the file).
absl::StatusOr<nlohmann::ordered_json> ReadWorkerResult(const std::string& path);

// The object of summary.json: job, steps, samples, auc, logloss, samples_per_s, wall_s, servers,
// workers, model_digest, bad_lines, first_bad_line. What nobody reported is null.
//   steps: the most of any worker; samples, bad_lines: summed;
//   auc, logloss, eval_samples, first_bad_line: the first worker's that has them;
//   samples_per_s: the samples of this run ("new_samples") over the longest "train_s", else the sum
//   of the workers' rates; null where this run trained nothing.
nlohmann::ordered_json MakeSummary(const Job& job,
                                   const std::vector<nlohmann::ordered_json>& results,
                                   const absl::optional<Digest>& digest, double wall_s);

// What a model that was only evaluated is worth, in a few lines for the console.
std::string RenderEvaluation(const nlohmann::ordered_json& summary);

// The summary in a few lines for the console.
std::string RenderSummary(const nlohmann::ordered_json& summary);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_SUMMARY_H_
