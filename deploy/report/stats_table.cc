#include "deploy/report/stats_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json/message_json.h"
#include "deploy/report/format.h"
#include "deploy/report/worker_totals.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Shorter waits are the normal course of a step.
constexpr double kWaitWorthSayingSeconds = 1;

std::string Percentiles(const ServerStats& stats, const std::string& method) {
  const RpcStats* rpc = FindRpc(stats, method);
  if (rpc == nullptr || rpc->latency().count() == 0) return "-";
  return absl::StrCat(FormatMicros(rpc->latency().p50_us()), " / ",
                      FormatMicros(rpc->latency().p99_us()));
}

uint64_t Errors(const ServerStats& stats) {
  uint64_t errors = 0;
  for (const RpcStats& rpc : stats.rpcs()) errors += rpc.errors();
  return errors;
}

// Sums of one table, or of all dense tensors, over the servers.
struct Sums {
  uint64_t tensors = 0, dim = 0, rows = 0, bytes = 0, pulled = 0, pushed = 0, created = 0;
  // For tables with a memory budget.
  uint64_t in_memory = 0, spilled_bytes = 0, read_back = 0, spilled = 0;
  // For tables with a min_count, or with eviction.
  uint64_t candidates = 0, dropped = 0, forgotten = 0;

  void Add(const TableStats& table) {
    dim = table.dim();
    rows += table.rows();
    bytes += table.bytes();
    pulled += table.keys_pulled();
    pushed += table.keys_pushed();
    created += table.rows_created();
    in_memory += table.rows_in_memory();
    spilled_bytes += table.bytes_spilled();
    read_back += table.rows_read_back();
    spilled += table.rows_spilled();
    candidates += table.candidates();
    dropped += table.gradients_dropped();
    forgotten += table.rows_forgotten();
  }
  std::vector<std::string> Row(const std::string& name, bool with_spill,
                               bool with_admission) const {
    std::vector<std::string> row = {name,
                                    FormatCount(dim),
                                    FormatCount(rows),
                                    FormatBytes(bytes),
                                    FormatCount(pulled),
                                    FormatCount(pushed),
                                    FormatCount(created)};
    if (with_spill) {
      row.insert(row.end(), {FormatCount(in_memory), FormatBytes(spilled_bytes),
                             FormatCount(spilled), FormatCount(read_back)});
    }
    if (with_admission) {
      row.insert(row.end(),
                 {FormatCount(candidates), FormatCount(dropped), FormatCount(forgotten)});
    }
    return row;
  }
};

uint64_t TableBytes(const ServerStats& stats) {
  uint64_t bytes = 0;
  for (const TableStats& table : stats.tables()) bytes += table.bytes();
  return bytes;
}

uint64_t TableRowCount(const ServerStats& stats) {
  uint64_t rows = 0;
  for (const TableStats& table : stats.tables()) rows += table.rows();
  return rows;
}

// "training", "counting lines 45%".
std::string PhaseText(const WorkerPhase& phase) {
  if (phase.total() == 0) return phase.name().empty() ? "-" : phase.name();
  return absl::StrFormat("%s %d%%", phase.name(), 100 * phase.done() / phase.total());
}

std::string LossText(double loss) {
  return std::isnan(loss) ? "n/a" : absl::StrFormat("%.4f", loss);
}

}  // namespace

const RpcStats* FindRpc(const ServerStats& stats, const std::string& method) {
  for (const RpcStats& rpc : stats.rpcs()) {
    // "Pull" or "/thermocline.ParameterServer/Pull"
    const size_t slash = rpc.method().rfind('/');
    if (rpc.method().substr(slash == std::string::npos ? 0 : slash + 1) == method) return &rpc;
  }
  return nullptr;
}

std::string RenderServerStats(const std::vector<ServerReport>& servers) {
  Rows rows = {{"server", "up", "step", "rows", "tables", "process", "pull p50 / p99",
                "push p50 / p99", "held", "not ready", "duplicates", "errors", "staleness"},
               {}};
  std::string errors;
  for (const ServerReport& server : servers) {
    if (!server.stats.ok()) {
      absl::StrAppend(&errors, server.address, ": ", server.stats.status().message(), "\n");
      continue;
    }
    const ServerStats& stats = *server.stats;
    rows.push_back({absl::StrCat(server.address, stats.embedded() ? " (embedded)" : "",
                                 stats.configured() ? "" : " (no job)"),
                    FormatSeconds(stats.uptime_s()), absl::StrCat(stats.complete_through()),
                    FormatCount(TableRowCount(stats)), FormatBytes(TableBytes(stats)),
                    FormatBytes(stats.resident_bytes()), Percentiles(stats, "Pull"),
                    Percentiles(stats, "Push"), FormatCount(stats.pulls_held()),
                    FormatCount(stats.pulls_not_ready() + stats.pushes_not_ready()),
                    FormatCount(stats.push_duplicates()), FormatCount(Errors(stats)),
                    absl::StrFormat("%d max, %.2f mean", stats.max_staleness_seen(),
                                    stats.mean_staleness_seen())});
    if (!stats.push_log_full().empty()) {
      absl::StrAppend(&errors, server.address, ": ", stats.push_log_full(), "\n");
    }
  }
  return absl::StrCat(FormatTable(rows), errors);
}

std::string RenderTableStats(const std::vector<ServerReport>& servers) {
  std::map<uint32_t, std::pair<std::string, Sums>> sparse;  // by id
  std::map<uint32_t, std::string> dense_names;              // by id
  Sums dense;
  bool with_spill = false, with_admission = false;
  for (const ServerReport& server : servers) {
    if (!server.stats.ok()) continue;
    for (const TableStats& table : server.stats->tables()) {
      with_spill = with_spill || table.rows_in_memory() > 0;
      with_admission = with_admission || table.candidates() > 0 || table.gradients_dropped() > 0 ||
                       table.rows_forgotten() > 0;
      if (table.role() == TableSpec::DENSE) {
        dense_names[table.id()] = table.name();
        dense.Add(table);
      } else {
        auto& [name, sums] = sparse[table.id()];
        name = table.name();
        sums.Add(table);
      }
    }
  }
  if (sparse.empty() && dense_names.empty()) return "";
  Rows rows = {{"table", "dim", "rows", "memory", "keys pulled", "keys pushed", "rows created"},
               {}};
  if (with_spill) {
    rows[0].insert(rows[0].end(), {"rows in memory", "on disk", "rows spilled", "rows read back"});
  }
  if (with_admission) {
    rows[0].insert(rows[0].end(), {"keys without a row", "gradients dropped", "rows forgotten"});
  }
  for (const auto& [id, table] : sparse) {
    rows.push_back(table.second.Row(table.first, with_spill, with_admission));
  }
  if (!dense_names.empty()) {
    // One is what a script keeps.
    const std::string name = dense_names.size() == 1
                                 ? dense_names.begin()->second
                                 : absl::StrCat("dense (", dense_names.size(), " tensors)");
    rows.push_back(dense.Row(name, with_spill, with_admission));
  }
  return FormatTable(rows);
}

// One line for the cache of each worker; "" if no worker has one.
std::string RenderCaches(const std::vector<WorkerReport>& workers) {
  Rows rows = {{"cache of worker", "device", "budget", "rows held", "of", "hits", "loaded",
                "bypassed", "rejected (no room)", "evicted", "written ahead", "window", "prefetch"},
               {}};
  const bool some_kept =
      std::any_of(workers.begin(), workers.end(), [](const WorkerReport& worker) {
        return worker.stats.ok() && worker.stats->cache().kept_capacity_rows() > 0;
      });
  if (some_kept) rows[0].insert(rows[0].end(), {"kept (DEVICE)", "of"});
  const size_t head = rows.size();
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok() || !worker.stats->has_cache()) continue;
    const CacheStats& cache = worker.stats->cache();
    const auto keys = static_cast<double>(cache.hits() + cache.loaded() + cache.bypassed());
    const auto percent = [keys](uint64_t part) {
      return absl::StrFormat("%.1f%%", keys > 0 ? 100.0 * static_cast<double>(part) / keys : 0.0);
    };
    rows.push_back({worker.address, worker.stats->device(), FormatBytes(cache.budget_bytes()),
                    FormatCount(cache.rows_held()), FormatCount(cache.capacity_rows()),
                    percent(cache.hits()), percent(cache.loaded()), percent(cache.bypassed()),
                    percent(cache.rejected_no_room()), FormatCount(cache.evicted()),
                    FormatCount(cache.written_ahead()), absl::StrCat(cache.window_steps()),
                    absl::StrCat(cache.prefetch_steps())});
    if (some_kept) {
      rows.back().insert(rows.back().end(),
                         {FormatCount(cache.rows_kept()), FormatCount(cache.kept_capacity_rows())});
    }
  }
  return rows.size() == head ? "" : absl::StrCat("\n", FormatTable(rows));
}

// One line for the hot rows of each worker; "" if no worker has any.
std::string RenderHot(const std::vector<WorkerReport>& workers) {
  Rows rows = {{"hot rows of worker", "held", "trains", "rate", "changes"}, {}};
  const size_t head = rows.size();
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok() || !worker.stats->has_hot()) continue;
    const HotStats& hot = worker.stats->hot();
    rows.push_back({worker.address, FormatCount(hot.hot_rows()),
                    hot.is_hot() ? "hot batches" : "cold batches",
                    absl::StrFormat("%.4g%%", hot.rate()), FormatCount(hot.changes())});
  }
  return rows.size() == head ? "" : absl::StrCat("\n", FormatTable(rows));
}

// One line for the exchange of each worker, and one for all; "" if no worker exchanges anything.
std::string RenderExchanges(const std::vector<WorkerReport>& workers) {
  Rows rows = {{"exchange of worker", "sent", "received", "sent again", "streams", "owed", "held",
                "waited", "most for", "most of it for worker"},
               {}};
  std::string waits;
  const size_t head = rows.size();
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok() || !worker.stats->has_exchange()) continue;
    const ExchangeStats& exchange = worker.stats->exchange();
    uint64_t sent = 0, received = 0;
    double waited_s = 0, most_s = 0;
    std::string most = "-", slowest = "-";
    for (const ExchangeStats::PhaseStats& phase : exchange.phases()) {
      sent += phase.bytes_sent();
      received += phase.bytes_received();
      waited_s += phase.wait_s();
      if (phase.wait_s() > most_s) most = phase.name();
      most_s = std::max(most_s, phase.wait_s());
    }
    const auto& of_ranks = exchange.wait_for_rank_s();
    const auto longest = std::max_element(of_ranks.begin(), of_ranks.end());
    if (longest != of_ranks.end() && *longest > 0)
      slowest = absl::StrCat(longest - of_ranks.begin());
    rows.push_back({worker.address, FormatBytes(sent), FormatBytes(received),
                    FormatBytes(exchange.bytes_sent_again()),
                    FormatCount(exchange.streams_opened()), FormatBytes(exchange.bytes_owed()),
                    FormatBytes(exchange.bytes_held()), absl::StrFormat("%.1f s", waited_s), most,
                    slowest});
    for (const WorkerWait& wait : worker.stats->waits()) {
      if (wait.seconds() < kWaitWorthSayingSeconds) continue;
      absl::StrAppend(&waits, Describe(worker.stats->worker_rank(), wait), "\n");
    }
  }
  if (rows.size() == head) return "";
  return absl::StrCat("\n", FormatTable(rows), "all workers: ", Describe(SumOf(workers)), "\n",
                      waits);
}

std::string RenderWorkerStats(const std::vector<WorkerReport>& workers) {
  Rows rows = {
      {"worker", "rank", "phase", "step", "samples", "samples/s", "loss", "process", "pulled",
       "pushed", "to device", "from device", "retries", "bad lines", "staleness"},
      {}};
  std::string errors, losses;
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok()) {
      absl::StrAppend(&errors, worker.address, ": ", worker.stats.status().message(), "\n");
      continue;
    }
    const WorkerStats& stats = *worker.stats;
    if (!stats.device_warning().empty()) {
      absl::StrAppend(&errors, worker.address, ": ", stats.device_warning(), "\n");
    }
    rows.push_back(
        {worker.address, absl::StrCat(stats.worker_rank()), PhaseText(stats.phase()),
         absl::StrCat(stats.step()), FormatCount(stats.samples()),
         absl::StrFormat("%.0f", stats.samples_per_s()), LossText(stats.loss()),
         FormatBytes(stats.resident_bytes()), FormatBytes(stats.bytes_pulled()),
         FormatBytes(stats.bytes_pushed()), FormatBytes(stats.bytes_to_device()),
         FormatBytes(stats.bytes_from_device()), FormatCount(stats.rpc_retries()),
         FormatCount(stats.bad_lines()),
         absl::StrFormat("%d max, %.2f mean", stats.max_staleness(), stats.mean_staleness())});
    if (stats.task_losses().empty()) continue;
    absl::StrAppend(&losses, "worker ", stats.worker_rank(), ": loss");
    for (const TaskStats& task : stats.task_losses()) {
      absl::StrAppend(&losses, "  ", task.task(), " ", LossText(task.loss()));
    }
    losses += '\n';
  }
  return absl::StrCat(FormatTable(rows), losses, RenderCaches(workers), RenderHot(workers),
                      RenderExchanges(workers), errors);
}

std::string StatsToJson(const std::vector<ServerReport>& servers,
                        const std::vector<WorkerReport>& workers) {
  Json json;
  const auto add = [&json](const char* kind, const auto& reports) {
    json[kind] = Json::array();
    for (const auto& report : reports) {
      Json entry;
      entry["address"] = report.address;
      if (report.stats.ok()) {
        entry["stats"] = MessageToJson(*report.stats);
      } else {
        entry["error"] = std::string(report.stats.status().message());
      }
      json[kind].push_back(std::move(entry));
    }
  };
  add("servers", servers);
  add("workers", workers);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace thermocline
