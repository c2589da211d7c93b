#include "deploy/controller/job_controller.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/job_loader.h"
#include "common/status_macros.h"
#include "common/stopwatch.h"
#include "deploy/backends/local/supervisor.h"
#include "deploy/controller/metrics_log.h"
#include "deploy/controller/server_group.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

// The only epoch, until jobs can resume.
constexpr uint64_t kEpoch = 1;
constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// How long processes may take to end by themselves.
constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::Duration kGraceAfterFailure = absl::Seconds(2);

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
    RETURN_IF_ERROR(StartWorkers());
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
        absl::StrCat("--port_file=", directory_.File(absl::StrCat("worker-", rank, ".port"))),
        absl::StrCat("--result_file=", ResultFile(rank)),
    };
    if (rank == 0) command.push_back("--progress_fd=3");
    return command;
  }

  std::string ResultFile(uint32_t rank) const {
    return directory_.File(absl::StrCat("worker-", rank, ".json"));
  }

  absl::Status StartWorker(uint32_t rank, int progress_fd) {
    ChildProcessOptions options;
    options.name = absl::StrCat("worker ", rank);
    options.command = WorkerCommand(rank);
    options.log_path = directory_.File(absl::StrCat("worker-", rank, ".log"));
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

  // Training takes as long as it takes; a worker that loses its servers ends by itself.
  absl::Status WaitForWorkers() {
    return supervisor_.WaitUntil(
        [this] {
          NoteWorkerAddresses();
          return supervisor_.AllWorkersEnded() && progress_ended_;
        },
        absl::InfiniteDuration(), kPollPeriod, "workers to end");
  }

  // A worker's own address becomes known some time after its start; servers.json takes it up.
  void NoteWorkerAddresses() {
    const uint32_t count = job_.cluster().workers();
    if (worker_addresses_.size() == count) return;
    std::vector<std::string> addresses;
    for (uint32_t rank = 0; rank < count; ++rank) {
      std::ifstream file(directory_.File(absl::StrCat("worker-", rank, ".port")));
      std::string address;
      if (!std::getline(file, address)) return;
      addresses.push_back(address);
    }
    worker_addresses_ = std::move(addresses);
    // Only `stats --run-dir` misses it if this fails.
    WriteAddresses().IgnoreError();
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
    // Stats first: reading all rows for the digest would show in them.
    ASSIGN_OR_RETURN(result.servers, servers_.GetStats());
    RETURN_IF_ERROR(directory_.Write("server_stats.json", StatsToJson(result.servers, {}) + "\n"));
    ASSIGN_OR_RETURN(const Digest digest, servers_.GetDigest(kEpoch));
    result.summary = MakeSummary(job_, workers, digest, wall_s);
    RETURN_IF_ERROR(directory_.Write("summary.json", result.summary.dump(2) + "\n"));
    return result;
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
  std::vector<std::string> worker_addresses_;
};

}  // namespace

absl::StatusOr<JobResult> RunJob(const Job& job, const JobPrograms& programs,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals) {
  return JobController(job, programs, directory, observer, signals).Run();
}

}  // namespace thermocline
