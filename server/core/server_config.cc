#include "server/core/server_config.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace thermocline {
namespace {

absl::string_view Name(const std::optional<LogDurability>& durability) {
  if (!durability.has_value()) return "NONE";
  return *durability == LogDurability::kHost ? "LOG_SYNC" : "LOG_ASYNC";
}

template <typename T>
std::string Difference(absl::string_view field, const T& here, const T& there) {
  if (here == there) return "";
  return absl::StrCat(field, " is ", here, " here, ", there, " there");
}

}  // namespace

absl::Status ValidateServerConfig(const ServerConfig& config) {
  const auto invalid = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("configuration: ", what...));
  };
  if (config.job_id.empty()) return invalid("job_id is empty");
  if (!IsJobId(config.job_id)) {
    return invalid("job_id '", absl::CHexEscape(config.job_id.substr(0, kMaxJobIdBytes)), "' has ",
                   config.job_id.size(), " bytes; an id is at most ", kMaxJobIdBytes,
                   " printable ASCII characters");
  }
  if (config.num_servers < 1 || config.num_servers > kNumPartitions) {
    return invalid("num_servers ", config.num_servers, " is not in [1, ", kNumPartitions, "]");
  }
  if (config.server_index.value() >= config.num_servers) {
    return invalid("server_index ", config.server_index.value(), " of ", config.num_servers,
                   " servers");
  }
  if (config.num_workers < 1 || config.num_workers > kMaxWorkers) {
    return invalid("num_workers ", config.num_workers, " is not in [1, ", kMaxWorkers, "]");
  }
  if (config.checkpoint_full_every < 1) return invalid("checkpoint_full_every is 0");
  if (config.checkpoint_directory.empty() && !config.base_checkpoint.empty()) {
    return invalid("base_checkpoint '", config.base_checkpoint, "' without a directory");
  }
  if (config.init_steps > static_cast<uint64_t>(kLastStep.value())) {
    return invalid("init_steps ", config.init_steps, " is beyond ", kLastStep.value());
  }
  if (config.tables.empty()) return invalid("no tables");
  absl::flat_hash_set<uint32_t> ids;
  absl::flat_hash_set<std::string> names;
  for (const TableLayout& table : config.tables) {
    if (!ids.insert(table.id.value()).second) {
      return invalid("two tables have the id ", table.id.value());
    }
    if (!names.insert(table.name).second) {
      return invalid("two tables have the name '", table.name, "'");
    }
    if (table.dim < 1 || table.dim > kMaxDim) {
      return invalid("table '", table.name, "': dim ", table.dim, " is not in [1, ", kMaxDim, "]");
    }
  }
  return absl::OkStatus();
}

std::string DescribeDifference(const ServerConfig& here, const ServerConfig& there) {
  for (std::string difference :
       {Difference("job_id", here.job_id, there.job_id),
        Difference("generation", here.generation, there.generation),
        Difference("server_index", here.server_index.value(), there.server_index.value()),
        Difference("num_servers", here.num_servers, there.num_servers),
        Difference("num_workers", here.num_workers, there.num_workers),
        Difference("seed", here.seed, there.seed),
        Difference("staleness_steps", here.staleness_steps, there.staleness_steps),
        Difference("durability", Name(here.durability), Name(there.durability)),
        Difference("init_checkpoint", here.init_checkpoint, there.init_checkpoint),
        Difference("init_steps", here.init_steps, there.init_steps),
        Difference("checkpoint_every_steps", here.checkpoint_every_steps,
                   there.checkpoint_every_steps),
        Difference("checkpoint_full_every", here.checkpoint_full_every,
                   there.checkpoint_full_every),
        there.checkpoint_directory.empty()
            ? ""
            : Difference("checkpoint_directory", here.checkpoint_directory,
                         there.checkpoint_directory),
        Difference("number of tables", here.tables.size(), there.tables.size())}) {
    if (!difference.empty()) return difference;
  }
  for (size_t i = 0; i < here.tables.size(); ++i) {
    if (here.tables[i] == there.tables[i]) continue;
    return DescribeDifference(here.tables[i], there.tables[i]);
  }
  return "";
}

}  // namespace thermocline
