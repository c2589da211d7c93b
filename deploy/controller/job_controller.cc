#include "deploy/controller/job_controller.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/job/job_loader.h"
#include "common/status_macros.h"
#include "common/stopwatch.h"
#include "deploy/controller/metrics_log.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

// The only epoch, until jobs can resume.
constexpr uint64_t kEpoch = 1;
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
        signals_(signals) {}

  absl::StatusOr<JobResult> Run() {
    RETURN_IF_ERROR(directory_.Write("job.textproto", JobToText(job_)));
    ASSIGN_OR_RETURN(metrics_, MetricsLog::Create(directory_.File("metrics.jsonl")));
    const EpochObserver observer = MakeEpochObserver();
    EpochRun epoch(job_, programs_, directory_, kEpoch, observer, signals_);
    absl::StatusOr<JobResult> result = RunEpoch(&epoch);
    epoch.Stop(result.ok() ? kGrace : kGraceAfterFailure);
    return result;
  }

 private:
  absl::StatusOr<JobResult> RunEpoch(EpochRun* epoch) {
    RETURN_IF_ERROR(epoch->Train());
    const double wall_s = absl::ToDoubleSeconds(watch_.Elapsed());
    if (observer_.on_training_done) observer_.on_training_done();
    return Collect(epoch, wall_s);
  }

  EpochObserver MakeEpochObserver() {
    EpochObserver observer;
    observer.on_servers_up = [this](const std::vector<std::string>& addresses) {
      if (observer_.on_servers_up) observer_.on_servers_up(addresses);
    };
    observer.on_metrics = [this](absl::string_view data) { OnMetrics(data); };
    observer.on_server_end = [this](const std::string& name, const std::string& how_it_ended) {
      return OnServerEnd(name, how_it_ended);
    };
    return observer;
  }

  void OnMetrics(absl::string_view data) {
    const uint64_t before = metrics_->progress_events();
    metrics_->Append(data, watch_.Elapsed());
    if (metrics_->progress_events() > before && observer_.on_progress) {
      observer_.on_progress(metrics_->progress());
    }
  }

  bool OnServerEnd(const std::string& name, const std::string& how_it_ended) {
    if (restarts_ == job_.cluster().max_server_restarts()) return false;
    ++restarts_;
    if (observer_.on_server_restart) observer_.on_server_restart(name, how_it_ended);
    return true;
  }

  absl::StatusOr<JobResult> Collect(EpochRun* epoch, double wall_s) {
    JobResult result;
    ASSIGN_OR_RETURN(const std::vector<nlohmann::ordered_json> workers, epoch->WorkerResults());
    // The workers' results stand, whatever becomes of the servers now.
    const absl::StatusOr<Digest> digest = epoch->AskServers(&result.servers);
    result.summary = MakeSummary(
        job_, workers, digest.ok() ? absl::make_optional(*digest) : absl::nullopt, wall_s);
    result.summary["server_restarts"] = restarts_;
    RETURN_IF_ERROR(directory_.Write("summary.json", result.summary.dump(2) + "\n"));
    if (digest.ok()) return result;
    return absl::Status(digest.status().code(),
                        absl::StrCat("the model is trained, but summary.json lacks its digest: ",
                                     digest.status().message()));
  }

  const Job& job_;
  const JobPrograms& programs_;
  const RunDirectory& directory_;
  const JobObserver& observer_;
  SignalWatch* const signals_;
  const Stopwatch watch_;
  std::unique_ptr<MetricsLog> metrics_;
  uint32_t restarts_ = 0;  // Of servers.
};

}  // namespace

absl::StatusOr<JobResult> RunJob(const Job& job, const JobPrograms& programs,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals) {
  return JobController(job, programs, directory, observer, signals).Run();
}

}  // namespace thermocline
