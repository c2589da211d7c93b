// thermocline stats: what servers and workers are doing.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/control_client.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/format.h"
#include "deploy/report/left_stats.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/stats_table.h"
#include "deploy/report/summary.h"
#include "deploy/runner/host_watch.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct StatsFlags {
  std::vector<std::string> addresses;
  std::string run_dir;
  bool watch = false;
  int64_t interval_s = 1;
  bool json = false;
  TlsFiles tls;
};

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct Targets {
  std::vector<std::string> servers;
  std::vector<std::string> workers;
  TlsFiles tls;
};

std::vector<std::string> Strings(const Json& json, const char* name) {
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
  const auto json = Json::parse(file, nullptr, false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(file_name, " is no JSON object"));
  targets->servers = Strings(json, "servers");
  targets->workers = Strings(json, "workers");
  if (!targets->tls.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Job job, LoadJob(path + "/job.textproto", {}));
  // A reader needs no more.
  targets->tls = TlsFilesOf(job.cluster().tls(), Role::kReader);
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

// "": addresses are given.
absl::StatusOr<std::string> RunDirectoryOf(const StatsFlags& flags) {
  if (flags.addresses.empty()) {
    return flags.run_dir.empty() ? LatestRunDirectory() : flags.run_dir;
  }
  if (flags.run_dir.empty()) return std::string();
  return absl::InvalidArgumentError("give addresses or --run-dir, not both");
}

absl::StatusOr<Targets> TargetsOf(const StatsFlags& flags, const std::string& run_dir) {
  Targets targets;
  targets.tls = flags.tls;
  targets.servers = flags.addresses;
  if (!run_dir.empty()) RETURN_IF_ERROR(AddRunDirectory(run_dir, &targets));
  return targets;
}

// Whether all processes of the run are gone. Runs without a lock (`bench train`) count as running.
bool HasEnded(const std::string& run_dir) {
  return std::filesystem::exists(run_dir + "/lock") && !RunLock::IsHeld(run_dir);
}

// Asks all at once.
StatsSnapshot Ask(const Targets& targets) {
  StatsSnapshot reports;
  for (const std::string& address : targets.servers) {
    reports.servers.push_back({address, absl::UnknownError("not asked")});
  }
  for (const std::string& address : targets.workers) {
    reports.workers.push_back({address, absl::UnknownError("not asked")});
  }
  const size_t num_servers = reports.servers.size();
  CallAll(num_servers + reports.workers.size(), [&](size_t i) {
    if (i < num_servers) {
      ServerReport& report = reports.servers[i];
      const auto client = ControlClient::Create(report.address, targets.tls);
      report.stats = client.ok() ? (*client)->GetStats(kTimeout) : client.status();
    } else {
      WorkerReport& report = reports.workers[i - num_servers];
      const auto client = ControlClient::Create(report.address, targets.tls);
      report.stats = client.ok() ? (*client)->GetWorkerStats(kTimeout) : client.status();
    }
  });
  return reports;
}

// Whether every server answered; workers end earlier and may be gone.
bool AllServersAnswered(const StatsSnapshot& reports) {
  return std::all_of(reports.servers.begin(), reports.servers.end(),
                     [](const ServerReport& report) { return report.stats.ok(); });
}

bool NoServerAnswered(const StatsSnapshot& reports) {
  return std::none_of(reports.servers.begin(), reports.servers.end(),
                      [](const ServerReport& report) { return report.stats.ok(); });
}

// Ctrl-C ends `stats --watch` as it is meant to end, at any moment: there is nothing to clean up.
void ExitOnStopRequest() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const auto previous = signal(number, [](int) { _exit(kExitDone); });
    if (previous == SIG_IGN) signal(number, SIG_IGN);
  }
}

// An array; null: there has been none.
Json SlowHostsOf(const std::string& run_dir) {
  if (run_dir.empty()) return Json();
  const Json file = ReadJsonFile(absl::StrCat(run_dir, "/", kSlowHostsFile));
  return file.contains("slow_hosts") ? file["slow_hosts"] : Json();
}

// One document a line where more follow.
std::string RenderJson(const StatsSnapshot& reports, const Json& slow_hosts, bool one_line) {
  Json json = Json::parse(StatsToJson(reports.servers, reports.workers));
  if (!slow_hosts.is_null()) json["slow_hosts"] = slow_hosts;
  return json.dump(one_line ? -1 : 2);
}

std::string RenderSlowHosts(const Json& slow_hosts) {
  std::string text;
  for (const Json& host : slow_hosts) absl::StrAppend(&text, "\n", TextAt(host, "text"), "\n");
  return text;
}

std::string RenderTables(const StatsSnapshot& reports) {
  std::string text =
      absl::StrCat(RenderServerStats(reports.servers), "\n", RenderTableStats(reports.servers));
  if (!reports.workers.empty()) {
    absl::StrAppend(&text, "\n", RenderWorkerStats(reports.workers));
  }
  return text;
}

std::string DescribeProgress(const Json& progress) {
  const auto count = [&](const char* name) {
    return FormatCount(static_cast<uint64_t>(std::max(0.0, NumberAt(progress, name).value_or(0))));
  };
  return absl::StrCat("last progress: ", count("step"), " steps, ", count("samples"), " samples\n");
}

// Shows the result of a run that has ended. Returns the exit code: 0 if it ended well.
int ShowEnded(const std::string& run_dir, bool as_json, bool one_line) {
  const MetricsTail tail = ReadMetricsTail(run_dir + "/metrics.jsonl");
  const bool done = tail.end.has_value() && TextAt(*tail.end, "status") == "OK";
  const std::string reason =
      tail.end.has_value() ? TextAt(*tail.end, "reason") : "its launcher was killed";
  // Whether summary.json is of that launch: trained to its end, it may have failed nevertheless.
  const bool trained = done || (tail.end.has_value() && tail.end->contains("has_summary") &&
                                (*tail.end)["has_summary"] == true);
  const Json summary = ReadJsonFile(run_dir + "/summary.json");
  const StatsSnapshot reports = ReadLeftStats(run_dir);
  if (as_json) {
    Json json = Json::parse(StatsToJson(reports.servers, reports.workers));
    json["ended"] = {
        {"done", done}, {"trained", trained}, {"reason", done ? Json() : Json(reason)}};
    json["ended"]["progress"] = tail.progress.value_or(Json());
    json["ended"]["summary"] = summary;
    std::printf("%s\n", json.dump(one_line ? -1 : 2).c_str());
  } else {
    std::string text = absl::StrCat("the job in ", run_dir, " has ended");
    if (!done) absl::StrAppend(&text, trained ? " and failed: " : " without a result: ", reason);
    absl::StrAppend(&text, "\n");
    if (!trained && tail.progress) absl::StrAppend(&text, DescribeProgress(*tail.progress));
    if (summary.is_object()) {
      absl::StrAppend(&text, trained ? "" : "\nof the launch before that trained to its end:\n",
                      RenderSummary(summary), "\n", RenderTables(reports));
    }
    std::fputs(text.c_str(), stdout);
  }
  std::fflush(stdout);
  return done ? kExitDone : kExitFailed;
}

int RunStats(const StatsFlags& flags) {
  const auto run_dir = RunDirectoryOf(flags);
  if (!run_dir.ok()) return Complain(run_dir.status().message(), kExitUsage);
  if (flags.watch) {
    ExitOnStopRequest();
    signal(SIGPIPE, SIG_IGN);  // a reader that closes its end ends the loop below
  }
  while (true) {
    if (!run_dir->empty() && HasEnded(*run_dir))
      return ShowEnded(*run_dir, flags.json, flags.watch);
    // Read each time: a job that goes back to a checkpoint starts other servers.
    const auto targets = TargetsOf(flags, *run_dir);
    if (!targets.ok()) return Complain(targets.status().message(), kExitUsage);
    const StatsSnapshot reports = Ask(*targets);
    const Json slow_hosts = SlowHostsOf(*run_dir);
    if (flags.json) {
      std::printf("%s\n", RenderJson(reports, slow_hosts, /*one_line=*/flags.watch).c_str());
    } else {
      // "Go to the corner" and "clear the screen".
      if (flags.watch && isatty(STDOUT_FILENO)) std::fputs("\x1b[H\x1b[2J", stdout);
      const bool between = flags.watch && !run_dir->empty() && NoServerAnswered(reports);
      std::fputs(between ? "no server answers: the run begins, goes back to a checkpoint, or ends\n"
                         : absl::StrCat(RenderTables(reports), RenderSlowHosts(slow_hosts)).c_str(),
                 stdout);
    }
    std::fflush(stdout);
    if (!flags.watch) return AllServersAnswered(reports) ? kExitDone : kExitFailed;
    if (std::ferror(stdout)) return kExitDone;
    absl::SleepFor(absl::Seconds(flags.interval_s));
  }
}

}  // namespace

void AddStats(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<StatsFlags>();
  CLI::App* command = AddCommand(
      app, "stats", "shows what servers and workers are doing",
      R"(Asks the servers at the addresses, or the servers and workers of a run directory; by default those
of the latest run under runs/. Shows rows and memory, keys pulled and pushed, latencies, held pulls,
duplicates and staleness. If the run has ended, shows its result and the last stats of its
processes. Exit code 1 if a server does not answer, or the run ended without a result.

examples:
  thermocline stats 127.0.0.1:40001 127.0.0.1:40002
  thermocline stats --run-dir runs/quickstart-20240101-120000 --watch
  thermocline stats --json | jq '.servers[].stats.tables[].rows')");
  AddValue(command, "ADDRESS", &flags->addresses, "HOST:PORT", "servers to ask");
  AddValue(command, "--run-dir", &flags->run_dir, "DIR", "the servers and workers of this run");
  command->add_flag("--watch", flags->watch, "repeats, until the run ends or Ctrl-C");
  AddValue(command, "--interval", &flags->interval_s, "SECONDS",
           "the pause between repetitions of --watch; default 1")
      ->transform(WholeNumber(1, 3600));
  command->add_flag("--json", flags->json,
                    "prints JSON (proto/parameter_server.proto); one line each time with --watch");
  AddValue(command, "--tls-certificate", &flags->tls.certificate, "FILE", "to show (PEM)");
  AddValue(command, "--tls-private-key", &flags->tls.private_key, "FILE", "its key (PEM)");
  AddValue(command, "--tls-ca", &flags->tls.ca, "FILE",
           "the authority that signed the servers' certificates (PEM)");
  OnCommand(command, action, RunStats, flags);
}

}  // namespace thermocline
