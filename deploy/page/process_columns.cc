// The stats of servers and workers as columns of the document.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "deploy/job/process.h"
#include "deploy/page/run_document.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTables = 4096;
constexpr size_t kMaxProcesses = 64;

// Sums of one table over the servers.
struct TableSums {
  std::string name;
  uint32_t dim = 0;
  uint64_t rows = 0, most_rows = 0, bytes = 0, spilled = 0, forgotten = 0;

  void Add(const TableStats& table) {
    name = table.name();
    dim = table.dim();
    rows += table.rows();
    most_rows = std::max(most_rows, table.rows());
    bytes += table.bytes();
    spilled += table.bytes_spilled();
    forgotten += table.rows_forgotten() + table.gradients_dropped();
  }
};

Json EmptyColumns(std::initializer_list<const char*> names) {
  Json columns = Json::object();
  for (const char* name : names) columns[name] = Json::array();
  return columns;
}

void AddRow(std::initializer_list<std::pair<const char*, Json>> row, Json* columns) {
  for (const auto& [name, value] : row) (*columns)[name].push_back(value);
}

// Where a process ran; of a server else the host of its address.
Json HostOf(const RunFiles& files, const std::string& name, const std::string& address) {
  const auto found = files.hosts.find(name);
  if (found != files.hosts.end()) return found->second;
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? Json() : Json(address.substr(0, colon));
}

uint64_t RowsOf(const ServerReport& server) {
  uint64_t rows = 0;
  if (!server.stats.ok()) return rows;
  for (const TableStats& table : server.stats->tables()) rows += table.rows();
  return rows;
}

Json QuantileOf(const ServerStats& stats, const char* method, double (*get)(const LatencyStats&)) {
  const RpcStats* const rpc = FindRpc(stats, method);
  if (rpc == nullptr || rpc->latency().count() == 0) return nullptr;
  return ShortNumber(get(rpc->latency()));
}
double P50(const LatencyStats& latency) { return latency.p50_us(); }
double P99(const LatencyStats& latency) { return latency.p99_us(); }

double SlowestPull(const ServerReport& server) {
  const RpcStats* const rpc = server.stats.ok() ? FindRpc(*server.stats, "Pull") : nullptr;
  return rpc == nullptr ? 0 : rpc->latency().p99_us();
}

// All servers; of many those with the most rows, and the slowest. Ascending.
std::vector<size_t> ServersShown(const std::vector<ServerReport>& servers) {
  std::vector<size_t> order(servers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (servers.size() <= kMaxProcesses) return order;
  std::vector<size_t> shown;
  const auto take = [&](auto value_of) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return value_of(servers[a]) > value_of(servers[b]);
    });
    shown.insert(shown.end(), order.begin(), order.begin() + kMaxProcesses / 2);
  };
  take(RowsOf);
  take(SlowestPull);
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

Json ServerColumns(const RunFiles& files) {
  Json columns = EmptyColumns(
      {"name", "host", "rows", "bytes", "pull_p50", "pull_p99", "push_p99", "refused", "note"});
  for (const size_t index : ServersShown(files.stats.servers)) {
    const ServerReport& server = files.stats.servers[index];
    const std::string name = ProcessName(ProcessRole::kServer, index);
    const Json host = HostOf(files, name, server.address);
    if (!server.stats.ok()) {
      AddRow({{"name", name},
              {"host", host},
              {"rows", nullptr},
              {"bytes", nullptr},
              {"pull_p50", nullptr},
              {"pull_p99", nullptr},
              {"push_p99", nullptr},
              {"refused", nullptr},
              {"note", std::string(server.stats.status().message())}},
             &columns);
      continue;
    }
    const ServerStats& stats = *server.stats;
    const std::string note = stats.replayed_chunks() == 0
                                 ? stats.push_log_full()
                                 : absl::StrFormat("recovered %d chunks in %.1f s",
                                                   stats.replayed_chunks(), stats.recovery_s());
    AddRow({{"name", name},
            {"host", host},
            {"rows", RowsOf(server)},
            {"bytes", stats.resident_bytes()},
            {"pull_p50", QuantileOf(stats, "Pull", P50)},
            {"pull_p99", QuantileOf(stats, "Pull", P99)},
            {"push_p99", QuantileOf(stats, "Push", P99)},
            {"refused", stats.requests_refused()},
            {"note", note}},
           &columns);
  }
  return columns;
}

// How long it has waited for other workers; -1: it exchanges nothing with them.
double WaitedOf(const WorkerReport& worker) {
  if (!worker.stats.ok() || !worker.stats->has_exchange()) return -1;
  double waited_s = 0;
  for (const auto& phase : worker.stats->exchange().phases()) waited_s += phase.wait_s();
  return waited_s;
}

Json WorkerColumns(const RunFiles& files) {
  const std::vector<WorkerReport>& workers = files.stats.workers;
  std::vector<size_t> order(workers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (workers.size() > kMaxProcesses) {  // The ones that waited longest are shown.
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return WaitedOf(workers[a]) > WaitedOf(workers[b]);
    });
    order.resize(kMaxProcesses);
  }
  Json columns = EmptyColumns({"name", "host", "samples", "samples_per_s", "bytes", "retries",
                               "waited_s", "device", "note"});
  for (const size_t rank : order) {
    const WorkerReport& worker = workers[rank];
    const std::string name = ProcessName(ProcessRole::kWorker, rank);
    const Json host = HostOf(files, name, "");
    const WorkerStats stats = worker.stats.ok() ? *worker.stats : WorkerStats();
    const double waited_s = WaitedOf(worker);
    const std::string note =
        worker.stats.ok() ? stats.device_warning() : std::string(worker.stats.status().message());
    AddRow({{"name", name},
            {"host", host},
            {"samples", stats.samples()},
            {"samples_per_s", ShortNumber(stats.samples_per_s())},
            {"bytes", stats.resident_bytes()},
            {"retries", stats.rpc_retries()},
            {"waited_s", waited_s < 0 ? Json() : ShortNumber(waited_s)},
            {"device", stats.device()},
            {"note", note}},
           &columns);
  }
  return columns;
}

}  // namespace

Json TableColumns(const StatsSnapshot& stats) {
  std::map<uint32_t, TableSums> sparse;  // by id
  TableSums dense;
  bool has_dense = false;
  for (const ServerReport& server : stats.servers) {
    if (!server.stats.ok()) continue;
    for (const TableStats& table : server.stats->tables()) {
      const bool is_dense = table.role() == TableSpec::DENSE;
      has_dense = has_dense || is_dense;
      (is_dense ? dense : sparse[table.id()]).Add(table);
    }
  }
  Json columns = EmptyColumns({"name", "dim", "rows", "bytes", "spilled", "skew", "forgotten"});
  const auto servers = static_cast<double>(stats.servers.size());
  for (const auto& [id, sums] : sparse) {
    if (columns["name"].size() >= kMaxTables) break;
    const auto rows = static_cast<double>(sums.rows);
    AddRow(
        {{"name", sums.name},
         {"dim", sums.dim},
         {"rows", sums.rows},
         {"bytes", sums.bytes},
         {"spilled", sums.spilled},
         {"skew", sums.rows > 0 ? ShortNumber(static_cast<double>(sums.most_rows) * servers / rows)
                                : Json()},
         {"forgotten", sums.forgotten}},
        &columns);
  }
  if (has_dense) {
    AddRow({{"name", "dense parameters"},
            {"dim", nullptr},
            {"rows", nullptr},
            {"bytes", dense.bytes},
            {"spilled", 0},
            {"skew", nullptr},
            {"forgotten", nullptr}},
           &columns);
  }
  return columns;
}

Json ProcessColumns(const RunFiles& files) {
  return {{"servers", ServerColumns(files)},
          {"num_servers", files.stats.servers.size()},
          {"workers", WorkerColumns(files)},
          {"num_workers", files.stats.workers.size()}};
}

}  // namespace thermocline
