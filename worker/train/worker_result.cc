#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/train/evaluation.h"
#include "worker/train/worker.h"

namespace thermocline {

namespace {

nlohmann::json ToJson(const CacheStats& cache) {
  return {{"budget_bytes", cache.budget_bytes()},
          {"capacity_rows", cache.capacity_rows()},
          {"hits", cache.hits()},
          {"loaded", cache.loaded()},
          {"bypassed", cache.bypassed()},
          {"rejected_no_room", cache.rejected_no_room()},
          {"evicted", cache.evicted()},
          {"written_ahead", cache.written_ahead()},
          {"rows_held", cache.rows_held()},
          {"rows_kept", cache.rows_kept()},
          {"kept_capacity_rows", cache.kept_capacity_rows()},
          {"window_steps", cache.window_steps()},
          {"prefetch_steps", cache.prefetch_steps()}};
}

nlohmann::json ToJson(const ExchangeStats& exchange) {
  nlohmann::json json;
  uint64_t sent = 0, received = 0;
  for (const ExchangeStats::PhaseStats& phase : exchange.phases()) {
    sent += phase.bytes_sent();
    received += phase.bytes_received();
    json["phases"][phase.name()] = {{"bytes_sent", phase.bytes_sent()},
                                    {"bytes_received", phase.bytes_received()},
                                    {"wait_s", phase.wait_s()}};
  }
  json["bytes_sent"] = sent;
  json["bytes_received"] = received;
  json["bytes_sent_again"] = exchange.bytes_sent_again();
  json["streams_opened"] = exchange.streams_opened();
  json["wait_for_rank_s"] = exchange.wait_for_rank_s();
  return json;
}

}  // namespace

std::string WorkerResultToJson(const WorkerResult& result) {
  nlohmann::json json = {{"steps", result.steps},
                         {"samples", result.samples},
                         {"new_samples", result.new_samples},
                         {"bad_lines", result.bad_lines},
                         {"repeated_headers", result.repeated_headers},
                         {"padding_ids", result.padding_ids},
                         {"train_s", result.train_s},
                         {"uptime_s", result.stats.uptime_s()},
                         {"eval_s", result.eval_s},
                         {"loss", result.stats.loss()},
                         {"samples_per_s", result.new_samples / std::max(result.train_s, 1e-9)},
                         {"bytes_pulled", result.stats.bytes_pulled()},
                         {"bytes_pushed", result.stats.bytes_pushed()},
                         {"bytes_to_device", result.stats.bytes_to_device()},
                         {"bytes_from_device", result.stats.bytes_from_device()},
                         {"rpc_retries", result.stats.rpc_retries()},
                         {"max_staleness", result.stats.max_staleness()},
                         {"mean_staleness", result.stats.mean_staleness()},
                         {"resident_bytes", result.stats.resident_bytes()}};
  if (result.bad_lines > 0) json["first_bad_line"] = result.first_bad_line;
  if (result.evaluation.samples > 0) {
    json["eval_samples"] = result.evaluation.samples;
    AddMetrics(result.evaluation, &json);
  }
  json["device"] = result.stats.device();
  if (!result.stats.device_warning().empty()) {
    json["device_warning"] = result.stats.device_warning();
  }
  if (result.stats.has_cache()) json["cache"] = ToJson(result.stats.cache());
  if (result.stats.has_hot()) {
    const HotStats& hot = result.stats.hot();
    json["hot"] = {{"rows", hot.hot_rows()}, {"changes", hot.changes()}, {"rate", hot.rate()}};
  }
  if (result.stats.has_exchange()) json["exchange"] = ToJson(result.stats.exchange());
  for (const StageStats& stage : result.stats.stages()) {
    json["stages"][stage.stage()] = {
        {"count", stage.count()}, {"total_s", stage.total_s()}, {"mean_us", stage.mean_us()}};
  }
  return json.dump(2) + "\n";
}

}  // namespace thermocline
