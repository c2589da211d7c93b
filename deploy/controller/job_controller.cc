#include "deploy/controller/job_controller.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "common/job/job_loader.h"
#include "common/status_macros.h"
#include "common/stopwatch.h"
#include "deploy/backends/local/supervisor.h"
#include "deploy/controller/metrics_log.h"
#include "deploy/controller/server_group.h"
#include "deploy/controller/stall_watch.h"
#include "deploy/controller/startup.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

// The only epoch, until jobs can resume.
constexpr uint64_t kEpoch = 1;
constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// How long processes may take to end by themselves.
constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::Duration kGraceAfterFailure = absl::Seconds(2);
// Until a server that broke its connection is seen to be dead.
constexpr absl::Duration kDeathNotice = absl::Seconds(1);

// How often the servers are asked whether the job advances.
constexpr absl::Duration kLongestLookPeriod = absl::Seconds(10);
constexpr int kLooksWithinStallTimeout = 4;

std::string WorkerName(uint32_t rank) { return absl::StrCat("worker ", rank); }

class JobController {
 public:
  JobController(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
                const JobObserver& observer, SignalWatch* signals)
      : job_(job),
        programs_(programs),
        directory_(directory),
        observer_(observer),
        supervisor_(signals),
        servers_(job, directory, &supervisor_) {}

  absl::StatusOr<JobResult> Run() {
    absl::StatusOr<JobResult> result = RunToEnd();
    const absl::Duration grace = result.ok() ? kGrace : kGraceAfterFailure;
    supervisor_.Stop(ProcessRole::kWorker, grace);
    servers_.Disconnect();
    supervisor_.Stop(ProcessRole::kServer, grace);
    return result;
  }

 private:
  absl::StatusOr<JobResult> RunToEnd() {
    RETURN_IF_ERROR(directory_.Write("job.textproto", JobToText(job_)));
    ASSIGN_OR_RETURN(metrics_, MetricsLog::Create(directory_.File("metrics.jsonl")));
    RETURN_IF_ERROR(servers_.Start(programs_.server));
    RETURN_IF_ERROR(WriteAddresses());
    RETURN_IF_ERROR(servers_.Configure(kEpoch));
    if (observer_.on_servers_up) observer_.on_servers_up(servers_.addresses());
    if (job_.cluster().durability() != NONE) {
      supervisor_.set_server_replacer(
          [this](const ChildProcess& ended) { return ReplaceServer(ended); });
    }
    RETURN_IF_ERROR(StartWorkers());
    RETURN_IF_ERROR(WaitForWorkersToComeUp());
    RETURN_IF_ERROR(WaitForWorkers());
    const double wall_s = absl::ToDoubleSeconds(watch_.Elapsed());
    if (observer_.on_training_done) observer_.on_training_done();
    return Collect(wall_s);
  }

  std::vector<std::string> WorkerCommand(uint32_t rank) const {
    std::vector<std::string> command = {
        programs_.worker,
        absl::StrCat("--job=", directory_.File("job.textproto")),
        absl::StrCat("--rank=", rank),
        absl::StrCat("--epoch=", kEpoch),
        absl::StrCat("--servers=", absl::StrJoin(servers_.addresses(), ",")),
        absl::StrCat("--port_file=", ProcessFile(directory_, WorkerName(rank), "port")),
        absl::StrCat("--result_file=", ResultFile(rank)),
    };
    if (rank == 0) command.push_back("--progress_fd=3");
    return command;
  }

  std::string ResultFile(uint32_t rank) const {
    return ProcessFile(directory_, WorkerName(rank), "json");
  }

  absl::Status StartWorker(uint32_t rank, int progress_fd) {
    ChildProcessOptions options;
    options.name = WorkerName(rank);
    options.command = WorkerCommand(rank);
    options.log_path = ProcessFile(directory_, options.name, "log");
    options.inherited_fd = progress_fd;
    return supervisor_.Start(ProcessRole::kWorker, options);
  }

  absl::Status StartWorkers() {
    int progress_pipe[2];
    if (pipe2(progress_pipe, O_CLOEXEC) != 0) {
      return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
    }
    supervisor_.ReadFrom(progress_pipe[0], [this](absl::string_view data) { OnMetrics(data); });
    absl::Status started = StartWorker(0, progress_pipe[1]);
    close(progress_pipe[1]);
    for (uint32_t rank = 1; started.ok() && rank < job_.cluster().workers(); ++rank) {
      started = StartWorker(rank, -1);
    }
    return started;
  }

  void OnMetrics(absl::string_view data) {
    if (data.empty()) {
      progress_ended_ = true;
      return;
    }
    const uint64_t before = metrics_->progress_events();
    metrics_->Append(data, watch_.Elapsed());
    if (metrics_->progress_events() > before && observer_.on_progress) {
      observer_.on_progress(metrics_->progress());
    }
  }

  // Whether the server is started again. Workers repeat what it didn't acknowledge.
  bool ReplaceServer(const ChildProcess& ended) {
    if (restarts_ == job_.cluster().max_server_restarts()) return false;
    for (size_t i = 0; i < servers_.addresses().size(); ++i) {
      if (ended.name() != ServerGroup::NameOf(i)) continue;
      if (!servers_.Restart(i).ok()) return false;
      ++restarts_;
      if (observer_.on_server_restart) {
        observer_.on_server_restart(ended.name(), ended.DescribeEnd());
      }
      return true;
    }
    return false;
  }

  absl::Status WaitForWorkersToComeUp() {
    std::vector<std::string> names;
    for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
      names.push_back(WorkerName(rank));
    }
    ASSIGN_OR_RETURN(
        worker_addresses_,
        WaitForAddresses(names, directory_, absl::Seconds(job_.cluster().startup_timeout_s()),
                         &supervisor_));
    // Only `stats --run-dir` misses it if this fails.
    WriteAddresses().IgnoreError();
    return absl::OkStatus();
  }

  // Training takes as long as it takes, as long as something advances. A worker that loses its
  // servers ends by itself.
  absl::Status WaitForWorkers() {
    const absl::Duration limit = StallTimeout();
    const absl::Duration period = std::min(kLongestLookPeriod, limit / kLooksWithinStallTimeout);
    StallWatch stall(job_.cluster().servers());
    const Stopwatch watch;
    while (true) {
      const absl::Status ended =
          supervisor_.WaitUntil([this] { return WorkersEnded() || !servers_.restart_error().ok(); },
                                period, kPollPeriod, "workers to end");
      RETURN_IF_ERROR(servers_.restart_error());
      if (!absl::IsDeadlineExceeded(ended)) return ended;
      ASSIGN_OR_RETURN(const std::vector<ServerReport> reports, servers_.GetStats());
      stall.Look(reports, watch.Elapsed());
      if (watch.Elapsed() - stall.last_advance() >= limit) return StallReport(stall);
    }
  }

  bool WorkersEnded() { return supervisor_.AllWorkersEnded() && progress_ended_; }

  // How long a job may do nothing; infinite where the user wants no limit.
  absl::Duration StallTimeout() const {
    const uint32_t seconds = job_.cluster().stall_timeout_s();
    return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
  }

  absl::Status StallReport(const StallWatch& stall) {
    std::vector<uint32_t> running;
    for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
      if (supervisor_.IsRunning(WorkerName(rank))) running.push_back(rank);
    }
    std::string logs;
    for (const uint32_t rank : stall.Behind(running)) {
      absl::StrAppend(&logs, "\n  | ", ProcessFile(directory_, WorkerName(rank), "log"));
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "nothing has advanced for ", absl::FormatDuration(StallTimeout()),
        " (cluster.stall_timeout_s): ", stall.WhoIsWaitedFor(running), "; logs:", logs));
  }

  absl::Status WriteAddresses() const {
    nlohmann::ordered_json json;
    json["job"] = job_.name();
    json["servers"] = servers_.addresses();
    json["workers"] = worker_addresses_;
    return directory_.Write("servers.json", json.dump(2) + "\n");
  }

  absl::StatusOr<JobResult> Collect(double wall_s) {
    JobResult result;
    std::vector<nlohmann::ordered_json> workers;
    for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
      ASSIGN_OR_RETURN(nlohmann::ordered_json worker, ReadWorkerResult(ResultFile(rank)));
      workers.push_back(std::move(worker));
    }
    // The workers' results stand, whatever becomes of the servers now.
    const absl::StatusOr<Digest> digest = AskServersUntilTheyAnswer(&result.servers);
    result.summary = MakeSummary(
        job_, workers, digest.ok() ? absl::make_optional(*digest) : absl::nullopt, wall_s);
    result.summary["server_restarts"] = restarts_;
    RETURN_IF_ERROR(directory_.Write("summary.json", result.summary.dump(2) + "\n"));
    if (digest.ok()) return result;
    return absl::Status(digest.status().code(),
                        absl::StrCat("the model is trained, but summary.json lacks its digest: ",
                                     digest.status().message()));
  }

  // A server that dies meanwhile and is started again is asked again.
  absl::StatusOr<Digest> AskServersUntilTheyAnswer(std::vector<ServerReport>* reports) {
    while (true) {
      const uint32_t restarts = restarts_;
      absl::StatusOr<Digest> digest = AskServers(reports);
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
  absl::StatusOr<Digest> AskServers(std::vector<ServerReport>* reports) {
    ASSIGN_OR_RETURN(*reports, servers_.GetStats());
    RETURN_IF_ERROR(directory_.Write("server_stats.json", StatsToJson(*reports, {}) + "\n"));
    for (const ServerReport& report : *reports) RETURN_IF_ERROR(report.stats.status());
    return servers_.GetDigest(kEpoch, StallTimeout());
  }

  const Job& job_;
  const JobPrograms& programs_;
  const RunDirectory& directory_;
  const JobObserver& observer_;
  const Stopwatch watch_;
  Supervisor supervisor_;
  ServerGroup servers_;
  std::unique_ptr<MetricsLog> metrics_;
  bool progress_ended_ = false;
  uint32_t restarts_ = 0;  // Of servers.
  std::vector<std::string> worker_addresses_;
};

}  // namespace

absl::StatusOr<JobResult> RunJob(const Job& job, const JobPrograms& programs,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals) {
  return JobController(job, programs, directory, observer, signals).Run();
}

}  // namespace thermocline
