#include "deploy/controller/epoch_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/stopwatch.h"
#include "deploy/controller/startup.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// Until a server that broke its connection is seen to be dead.
constexpr absl::Duration kDeathNotice = absl::Seconds(1);

// How often the servers are asked whether the job advances.
constexpr absl::Duration kLongestLookPeriod = absl::Seconds(10);
constexpr int kLooksWithinStallTimeout = 4;

}  // namespace

EpochRun::EpochRun(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
                   uint64_t epoch, const EpochObserver& observer, SignalWatch* signals)
    : job_(job),
      programs_(programs),
      directory_(directory),
      epoch_(epoch),
      observer_(observer),
      supervisor_(signals),
      servers_(job, directory, &supervisor_),
      workers_(job, directory, &supervisor_) {}

absl::Status EpochRun::Train() {
  RETURN_IF_ERROR(servers_.Start(programs_.server));
  RETURN_IF_ERROR(WriteAddresses());
  RETURN_IF_ERROR(servers_.Configure(epoch_));
  observer_.on_servers_up(servers_.addresses());
  if (job_.cluster().durability() != NONE) {
    supervisor_.set_server_replacer(
        [this](const ChildProcess& ended) { return ReplaceServer(ended); });
  }
  WorkerGroupOptions options;
  options.program = programs_.worker;
  options.epoch = epoch_;
  options.servers = servers_.addresses();
  RETURN_IF_ERROR(workers_.Start(options, observer_.on_metrics));
  RETURN_IF_ERROR(workers_.WaitUntilUp());
  // Only `stats --run-dir` misses it if this fails.
  WriteAddresses().IgnoreError();
  return WaitForWorkers();
}

// Whether the server is started again. Workers repeat what it didn't acknowledge.
bool EpochRun::ReplaceServer(const ChildProcess& ended) {
  for (size_t i = 0; i < servers_.addresses().size(); ++i) {
    if (ended.name() != ServerGroup::NameOf(i)) continue;
    if (!observer_.on_server_end(ended.name(), ended.DescribeEnd())) return false;
    if (!servers_.Restart(i).ok()) return false;
    ++restarts_;
    return true;
  }
  return false;
}

// Training takes as long as it takes, as long as something advances. A worker that loses its
// servers ends by itself.
absl::Status EpochRun::WaitForWorkers() {
  const absl::Duration limit = StallTimeout();
  const absl::Duration period = std::min(kLongestLookPeriod, limit / kLooksWithinStallTimeout);
  StallWatch stall(job_.cluster().servers());
  const Stopwatch watch;
  while (true) {
    const absl::Status ended = supervisor_.WaitUntil(
        [this] { return workers_.AllEnded() || !servers_.restart_error().ok(); }, period,
        kPollPeriod, "workers to end");
    RETURN_IF_ERROR(servers_.restart_error());
    if (!absl::IsDeadlineExceeded(ended)) return ended;
    ASSIGN_OR_RETURN(const std::vector<ServerReport> reports, servers_.GetStats());
    stall.Look(reports, watch.Elapsed());
    if (watch.Elapsed() - stall.last_advance() >= limit) return StallReport(stall);
  }
}

// How long a job may do nothing; infinite where the user wants no limit.
absl::Duration EpochRun::StallTimeout() const {
  const uint32_t seconds = job_.cluster().stall_timeout_s();
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

absl::Status EpochRun::StallReport(const StallWatch& stall) {
  const std::vector<uint32_t> running = workers_.RunningRanks();
  std::string logs;
  for (const uint32_t rank : stall.Behind(running)) {
    absl::StrAppend(&logs, "\n  | ", workers_.LogFile(rank));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("nothing has advanced for ", absl::FormatDuration(StallTimeout()),
                   " (cluster.stall_timeout_s): ", stall.WhoIsWaitedFor(running), "; logs:", logs));
}

absl::Status EpochRun::WriteAddresses() const {
  nlohmann::ordered_json json;
  json["job"] = job_.name();
  json["servers"] = servers_.addresses();
  json["workers"] = workers_.addresses();
  return directory_.Write("servers.json", json.dump(2) + "\n");
}

absl::StatusOr<Digest> EpochRun::AskServers(std::vector<ServerReport>* reports) {
  while (true) {
    const uint32_t restarts = restarts_;
    absl::StatusOr<Digest> digest = AskServersOnce(reports);
    if (!absl::IsUnavailable(digest.status())) return digest;
    const absl::Status dead = supervisor_.WaitUntil([&] { return restarts_ > restarts; },
                                                    kDeathNotice, kPollPeriod, "a restart");
    if (absl::IsDeadlineExceeded(dead)) return digest;
    RETURN_IF_ERROR(dead);
    RETURN_IF_ERROR(supervisor_.WaitUntil([this] { return servers_.AllRecovered(); },
                                          StallTimeout(), kPollPeriod, "servers to recover"));
    RETURN_IF_ERROR(servers_.restart_error());
  }
}

// Stats, then the digest: reading all rows for it would show in them.
absl::StatusOr<Digest> EpochRun::AskServersOnce(std::vector<ServerReport>* reports) {
  ASSIGN_OR_RETURN(*reports, servers_.GetStats());
  RETURN_IF_ERROR(directory_.Write("server_stats.json", StatsToJson(*reports, {}) + "\n"));
  for (const ServerReport& report : *reports) RETURN_IF_ERROR(report.stats.status());
  return servers_.GetDigest(epoch_, StallTimeout());
}

void EpochRun::Stop(absl::Duration grace) {
  supervisor_.Stop(ProcessRole::kWorker, grace);
  servers_.Disconnect();
  supervisor_.Stop(ProcessRole::kServer, grace);
}

}  // namespace thermocline
