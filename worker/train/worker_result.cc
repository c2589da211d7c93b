#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "common/json/message_json.h"
#include "worker/train/evaluation.h"
#include "worker/train/worker.h"

namespace thermocline {

std::string WorkerResultToJson(const WorkerResult& result) {
  // Where the stats tell how far training has come, the result has the last word.
  WorkerStats stats = result.stats;
  stats.clear_phase();  // A worker that has ended is in none.
  stats.set_step(result.steps);
  stats.set_samples(result.samples);
  stats.set_samples_per_s(result.new_samples / std::max(result.train_s, 1e-9));
  stats.set_bad_lines(result.bad_lines);
  stats.set_padding_ids(result.padding_ids);
  nlohmann::ordered_json json = MessageToJson(stats);
  if (stats.task_losses().empty()) json.erase("task_losses");
  json["steps"] = result.steps;
  json["new_samples"] = result.new_samples;
  json["repeated_headers"] = result.repeated_headers;
  json["skipped_steps"] = result.skipped_steps;
  json["train_s"] = result.train_s;
  json["eval_s"] = result.eval_s;
  if (result.bad_lines > 0) json["first_bad_line"] = result.first_bad_line;
  if (result.evaluation.samples > 0) {
    json["eval_samples"] = result.evaluation.samples;
    nlohmann::json metrics;
    AddMetrics(result.evaluation, &metrics);
    metrics.erase("loss");  // The one in a worker's stats is that of training.
    json.update(nlohmann::ordered_json(metrics));
  }
  return json.dump(2) + "\n";
}

}  // namespace thermocline
