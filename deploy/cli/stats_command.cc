// thermocline stats: what servers and workers are doing.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/job/job_loader.h"
#include "common/net/control_client.h"
#include "common/status_macros.h"
#include "deploy/cli/command.h"
#include "deploy/console/stats_table.h"

namespace thermocline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct Targets {
  std::vector<std::string> servers;
  std::vector<std::string> workers;
  TlsFiles tls;
};

std::vector<std::string> Strings(const nlohmann::json& json, const char* name) {
  std::vector<std::string> strings;
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) return strings;
  for (const auto& element : *found) {
    if (element.is_string()) strings.push_back(element.get<std::string>());
  }
  return strings;
}

// The addresses that `train` left in a run directory, and the TLS files of its job.
absl::Status AddRunDirectory(const std::string& path, Targets* targets) {
  const std::string file_name = path + "/servers.json";
  std::ifstream file(file_name);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(file_name, " can't be read: is ", path,
                                            " a run directory whose servers are up?"));
  }
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(file_name, " is no JSON object"));
  targets->servers = Strings(json, "servers");
  targets->workers = Strings(json, "workers");
  if (!targets->tls.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Job job, LoadJob(path + "/job.textproto", {}));
  const Tls& tls = job.cluster().tls();
  targets->tls = {tls.certificate(), tls.private_key(), tls.ca()};
  return absl::OkStatus();
}

// The run directory made last under runs/.
absl::StatusOr<std::string> LatestRunDirectory() {
  std::string latest;
  std::filesystem::file_time_type latest_time;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("runs", error)) {
    const auto time = std::filesystem::last_write_time(entry.path() / "servers.json", error);
    if (error || (!latest.empty() && time <= latest_time)) continue;
    latest = entry.path().string();
    latest_time = time;
  }
  if (!latest.empty()) return latest;
  return absl::InvalidArgumentError("name the servers' addresses, or a run with --run-dir");
}

absl::StatusOr<Targets> TargetsFromFlags(const Flags& flags) {
  Targets targets;
  targets.tls = {flags.Get("tls-certificate"), flags.Get("tls-private-key"), flags.Get("tls-ca")};
  targets.servers = flags.positional();
  if (!targets.servers.empty()) {
    if (flags.Has("run-dir")) {
      return absl::InvalidArgumentError("give addresses or --run-dir, not both");
    }
    return targets;
  }
  std::string path = flags.Get("run-dir");
  if (path.empty()) {
    ASSIGN_OR_RETURN(path, LatestRunDirectory());
  }
  RETURN_IF_ERROR(AddRunDirectory(path, &targets));
  return targets;
}

struct Reports {
  std::vector<ServerReport> servers;
  std::vector<WorkerReport> workers;
};

// Asks all at once.
Reports Ask(const Targets& targets) {
  Reports reports;
  for (const std::string& address : targets.servers) {
    reports.servers.push_back({address, absl::UnknownError("not asked")});
  }
  for (const std::string& address : targets.workers) {
    reports.workers.push_back({address, absl::UnknownError("not asked")});
  }
  std::vector<std::thread> threads;
  for (ServerReport& report : reports.servers) {
    threads.emplace_back([&] {
      const auto client = ControlClient::Create(report.address, targets.tls);
      report.stats = client.ok() ? (*client)->GetStats(kTimeout) : client.status();
    });
  }
  for (WorkerReport& report : reports.workers) {
    threads.emplace_back([&] {
      const auto client = ControlClient::Create(report.address, targets.tls);
      report.stats = client.ok() ? (*client)->GetWorkerStats(kTimeout) : client.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reports;
}

// Whether every server answered; workers end earlier and may be gone.
bool AllServersAnswered(const Reports& reports) {
  return std::all_of(reports.servers.begin(), reports.servers.end(),
                     [](const ServerReport& report) { return report.stats.ok(); });
}

// Ctrl-C ends `stats --watch` as it is meant to end, at any moment: there is nothing to clean up.
void ExitOnStopRequest() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const auto previous = signal(number, [](int) { _exit(kExitDone); });
    if (previous == SIG_IGN) signal(number, SIG_IGN);
  }
}

// One document a line where more follow.
std::string RenderJson(const Reports& reports, bool one_line) {
  const std::string text = StatsToJson(reports.servers, reports.workers);
  return one_line ? nlohmann::ordered_json::parse(text).dump() : text;
}

std::string RenderTables(const Reports& reports) {
  std::string text =
      absl::StrCat(RenderServerStats(reports.servers), "\n", RenderTableStats(reports.servers));
  if (!reports.workers.empty()) {
    absl::StrAppend(&text, "\n", RenderWorkerStats(reports.workers));
  }
  return text;
}

int Stats(const Flags& flags) {
  const auto interval_s = flags.GetInt("interval", 1, 1, 3600);
  if (!interval_s.ok()) return Complain(interval_s.status().message(), kExitUsage);
  const auto targets = TargetsFromFlags(flags);
  if (!targets.ok()) return Complain(targets.status().message(), kExitUsage);
  const bool watch = flags.Has("watch");
  if (watch) {
    ExitOnStopRequest();
    signal(SIGPIPE, SIG_IGN);  // a reader that goes away has seen enough
  }
  while (true) {
    const Reports reports = Ask(*targets);
    if (flags.Has("json")) {
      std::printf("%s\n", RenderJson(reports, /*one_line=*/watch).c_str());
    } else {
      // "Go to the corner" and "clear the screen".
      if (watch && isatty(STDOUT_FILENO)) std::fputs("\x1b[H\x1b[2J", stdout);
      std::fputs(RenderTables(reports).c_str(), stdout);
    }
    std::fflush(stdout);
    if (!watch) return AllServersAnswered(reports) ? kExitDone : kExitFailed;
    if (std::ferror(stdout)) return kExitDone;
    absl::SleepFor(absl::Seconds(*interval_s));
  }
}

}  // namespace

Command StatsCommand() {
  Command command;
  command.name = "stats";
  command.arguments = "[ADDRESS...] [FLAGS]";
  command.summary = "what servers and workers are doing";
  command.details =
      "Asks the servers at the addresses (host:port), or those of a run directory with its\n"
      "workers; by default those of the latest run under runs/. Shows rows and memory, keys "
      "pulled\n"
      "and pushed, latencies, held pulls, duplicates and staleness. Exit code 1 if a server does\n"
      "not answer.\n";
  command.examples =
      "  thermocline stats 127.0.0.1:40001 127.0.0.1:40002\n"
      "  thermocline stats --run-dir runs/quickstart-20240101-120000 --watch\n"
      "  thermocline stats --json | jq '.servers[].stats.tables[].rows'\n";
  command.flags = {
      {"run-dir", "DIR", "the servers and workers of this run"},
      {"watch", "", "shows them again and again, until Ctrl-C"},
      {"interval", "SECONDS", "between two looks with --watch; default 1"},
      {"json", "",
       "prints JSON, fields as in proto/parameter_server.proto; with --watch one line a look"},
      {"tls-certificate", "FILE", "PEM: the certificate to show"},
      {"tls-private-key", "FILE", "PEM: its key"},
      {"tls-ca", "FILE", "PEM: who must have signed the servers' certificates"},
  };
  command.run = Stats;
  return command;
}

}  // namespace thermocline
