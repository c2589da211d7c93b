#include "deploy/report/left_stats.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// JSON has null for a number that is not one, and a message would take it for 0.
void NameNaNs(Json* json) {
  if (json->is_null()) *json = "NaN";
  if (!json->is_structured()) return;
  for (Json& part : *json) NameNaNs(&part);
}

template <typename Stats>
absl::StatusOr<Stats> StatsFromJson(Json json) {
  NameNaNs(&json);
  google::protobuf::util::JsonParseOptions options;
  // A file may be of another version, and a worker's has more than its stats.
  options.ignore_unknown_fields = true;
  Stats stats;
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (google::protobuf::util::JsonStringToMessage(text, &stats, options).ok()) return stats;
  return absl::DataLossError("its stats can't be read");
}

// A worker's file of an earlier build has no rank, counts steps under another name, and has stages
// and phases as objects by name. What can't be shown as it was is left out.
Json OfThisBuild(uint32_t rank, Json worker) {
  if (!worker.contains("stages") || !worker["stages"].is_object()) return worker;
  worker.erase("stages");
  worker.erase("exchange");
  worker["worker_rank"] = rank;
  if (worker.contains("steps")) worker["step"] = worker["steps"];
  return worker;
}

}  // namespace

StatsSnapshot ReadLeftStats(const std::string& run_dir) {
  StatsSnapshot left;
  const Json file = ReadJsonFile(run_dir + "/server_stats.json");
  if (file.is_object() && file.contains("servers")) {
    for (const Json& server : file["servers"]) {
      left.servers.push_back({TextAt(server, "address"), absl::UnknownError(""), {}});
      if (server.is_object() && server.contains("stats")) {
        left.servers.back().stats = StatsFromJson<ServerStats>(server["stats"]);
      } else {
        left.servers.back().stats = absl::UnavailableError(TextAt(server, "error"));
      }
    }
  }
  for (uint32_t rank = 0;; ++rank) {
    const Json json = ReadJsonFile(absl::StrCat(run_dir, "/worker-", rank, ".json"));
    if (!json.is_object()) return left;
    left.workers.push_back(
        {absl::StrCat("worker ", rank), StatsFromJson<WorkerStats>(OfThisBuild(rank, json)), {}});
  }
}

}  // namespace thermocline
