#include "tests/simulation/sim_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "proto/parameter_server.pb.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

struct Shard {
  uint32_t num_servers;
  uint32_t index;
};

// The rows of the model that are one server's.
SequentialModel::Rows RowsOf(const SequentialModel::Rows& all, const Shard& shard) {
  const ClusterMap cluster(shard.num_servers);
  SequentialModel::Rows rows;
  for (const auto& [table, of_table] : all) {
    auto& into = rows[table];
    for (const auto& [key, row] : of_table) {
      const uint64_t hash = KeyHash(TableSalt(table), key);
      if (cluster.ServerOfHash(hash).value() == shard.index) into.emplace(key, row);
    }
  }
  return rows;
}

// "" where `core` holds `expected` and nothing else.
std::string DescribeRows(ServerCore* core, const SequentialModel::Rows& expected,
                         const WorkersTables& tables) {
  std::string difference;
  for (const auto& [table, rows] : expected) {
    const bool is_held = tables.held.count(table) > 0;
    if (is_held && !tables.are_written) continue;
    size_t visited = 0;
    const absl::Status status = core->VisitRows(
        table, [&, id = table.value(), &rows = rows](Key key, absl::Span<const float> row,
                                                     uint32_t count, Step changed) {
          ++visited;
          const auto found = rows.find(key);
          if (found != rows.end() && found->second.count == count &&
              (is_held || found->second.changed == changed) &&
              row == absl::MakeConstSpan(found->second.floats)) {
            return;
          }
          difference = absl::StrCat("table ", id, ", key ", key,
                                    found == rows.end() ? ": no push created this row"
                                                        : ": row, count or last change differ");
        });
    if (!status.ok()) return status.ToString();
    if (!difference.empty()) return difference;
    if (visited != rows.size()) {
      return absl::StrCat("table ", table.value(), " has ", visited, " rows of ", rows.size());
    }
  }
  return "";
}

std::string Restore(const SequentialModel::Rows& expected, const std::set<TableId>& held,
                    ServerConfig config, const ListedCheckpoint& listed, Disk* disk) {
  config.base_checkpoint = listed.name;
  config.base_generation = listed.id.generation;
  VirtualScheduler scheduler;
  ServerCore core({}, &scheduler, nullptr, {disk, &scheduler});
  const absl::Status configured = core.Configure(config);
  if (!configured.ok()) return configured.ToString();
  ServerStats stats;
  core.FillStats(&stats);
  if (stats.complete_through() != listed.id.step.value()) {
    return absl::StrCat("begins after step ", stats.complete_through());
  }
  return DescribeRows(&core, RowsOf(expected, {config.num_servers, config.server_index.value()}),
                      {held, /*are_written=*/true});
}

}  // namespace

Digest DigestOf(const SequentialModel::Rows& rows) {
  Digest digest;
  for (const auto& [table, of_table] : rows) {
    for (const auto& [key, row] : of_table) {
      digest.Add(row.floats.empty() ? CandidateDigest(table, key, row.count)
                                    : RowDigest(table, key, row.floats));
    }
  }
  return digest;
}

void CheckServerRows(const SequentialModel& model, const WorkersTables& tables,
                     uint32_t num_servers, SimServer* server, std::vector<std::string>* failures) {
  ServerStats stats;
  server->core()->FillStats(&stats);
  const Step through(stats.complete_through());
  std::string what;
  if (through > model.complete_through()) {
    what = "no worker pushed that much";
  } else {
    what = DescribeRows(server->core(),
                        RowsOf(model.RowsAfter(through), {num_servers, server->index().value()}),
                        tables);
  }
  if (what.empty()) return;
  failures->push_back(absl::StrCat("server ", server->index().value(), ", which has applied step ",
                                   through.value(), ": ", what));
}

uint64_t CheckCheckpoints(const SequentialModel& model, const CheckpointLines& lines,
                          const std::set<TableId>& held, const ServerConfig& config,
                          uint32_t num_servers, Disk* disk, const CheckpointStore& store,
                          std::vector<std::string>* failures) {
  const auto list = store.List();
  if (!list.ok()) {
    failures->push_back(list.status().ToString());
    return 0;
  }
  for (const ListedCheckpoint& listed : *list) {
    const auto line = lines.find({listed.id.generation, listed.id.step});
    const SequentialModel::Rows& expected =
        line != lines.end() ? *line->second.rbegin()->second : model.RowsAfter(listed.id.step);
    std::string what = listed.status.ok() ? "" : listed.status.ToString();
    for (uint32_t i = 0; i < num_servers && what.empty(); ++i) {
      ServerConfig restored = config;
      restored.generation = 1'000'000;
      restored.num_servers = num_servers;
      restored.server_index = ServerIndex(i);
      restored.durability.reset();
      what = Restore(expected, held, restored, listed, disk);
    }
    if (!what.empty()) failures->push_back(absl::StrCat("checkpoint ", listed.name, ": ", what));
  }
  return list->size();
}

}  // namespace thermocline
