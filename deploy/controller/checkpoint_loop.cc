#include "deploy/controller/checkpoint_loop.h"

#include <atomic>
#include <utility>

#include "absl/time/time.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/job/job_tables.h"
#include "common/math/table_spec.h"
#include "deploy/controller/checkpoint_match.h"
#include "deploy/controller/fan_out.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(200);
constexpr absl::Duration kCallTimeout = absl::Seconds(2);

CheckpointManifest ManifestOf(const Job& job, const EpochStart& start, const std::string& build) {
  CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.set_job_id(job.name());
  manifest.set_epoch(start.epoch);
  manifest.set_num_servers(job.cluster().servers());
  manifest.set_num_workers(job.cluster().workers());
  manifest.set_seed(job.seed());
  for (const TableLayout& layout : ResolveTables(job).AllLayouts()) {
    *manifest.add_tables() = TableLayoutToProto(layout);
  }
  *manifest.mutable_job() = job;
  manifest.set_cpu_isa(ResolvedCpuIsa(job));
  manifest.set_build(build);
  return manifest;
}

CheckpointKeeperOptions OptionsFor(const Job& job, const EpochStart& start,
                                   const CheckpointLoop::Environment& environment) {
  CheckpointKeeperOptions options;
  options.manifest = ManifestOf(job, start, environment.build);
  options.base = start.base;
  options.base_step = start.base_step;
  options.every_steps = job.checkpoint().every_steps();
  options.at_end = job.checkpoint().at_end();
  options.keep = job.checkpoint().keep();
  if (job.cluster().durability() != NONE) {
    options.max_log_bytes = ParseByteSize(job.cluster().max_log_size()).value_or(UINT64_MAX);
  }
  options.staleness_steps = job.train().staleness_steps();
  options.samples_through = environment.samples_through;
  options.evaluations_through = environment.evaluations_through;
  return options;
}

}  // namespace

class CheckpointLoop::Calls : public CutParticipants {
 public:
  Calls(const Job& job, const EpochStart& start, ServerGroup* servers,
        std::vector<std::unique_ptr<ControlClient>> workers)
      : requests_(job.name(), start.epoch), servers_(*servers), workers_(std::move(workers)) {}

  // Calls that would begin from now on fail.
  void End() { ending_.store(true, std::memory_order_relaxed); }

  size_t num_servers() const override { return servers_.addresses().size(); }
  size_t num_workers() const override { return workers_.size(); }

  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut) override {
    const std::shared_ptr<ControlClient> client = servers_.client(index);
    if (ending_.load(std::memory_order_relaxed) || client == nullptr) return Ending();
    const auto reply = client->Checkpoint(Next(action, cut), kCallTimeout);
    if (reply.ok()) Learn(*reply);
    return reply;
  }

  absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                            Step cut) override {
    if (ending_.load(std::memory_order_relaxed)) return Ending();
    if (workers_[rank] == nullptr) return absl::FailedPreconditionError("the worker has ended");
    ControlClient& worker = *workers_[rank];
    const auto reply = worker.CheckpointWorker(Next(action, cut), kCallTimeout);
    if (!absl::IsFailedPrecondition(reply.status())) return reply;
    // A number that isn't ours may have come before this one; servers are asked how they stand
    // anyway.
    const auto status = worker.CheckpointWorker(Next(CheckpointRequest::STATUS, cut), kCallTimeout);
    if (status.ok()) Learn(*status);
    return reply;
  }

  absl::StatusOr<uint64_t> LogBytes(size_t index) override {
    const std::shared_ptr<ControlClient> client = servers_.client(index);
    if (ending_.load(std::memory_order_relaxed) || client == nullptr) return Ending();
    ASSIGN_OR_RETURN(const ServerStats stats, client->GetStats(kCallTimeout));
    return stats.push_log_bytes();
  }

  void ForEachServer(absl::FunctionRef<void(size_t index)> call) override {
    CallAll(num_servers(), call);
  }

 private:
  static absl::Status Ending() { return absl::UnavailableError("the epoch ends"); }

  CheckpointRequest Next(CheckpointRequest::Action action, Step cut) {
    absl::MutexLock lock(&mutex_);
    return requests_.Next(action, cut);
  }
  void Learn(const CheckpointReply& reply) {
    absl::MutexLock lock(&mutex_);
    requests_.Learn(reply);
  }

  absl::Mutex mutex_;
  CutRequests requests_ ABSL_GUARDED_BY(mutex_);  // All servers are asked for STATUS at once.
  ServerGroup& servers_;
  const std::vector<std::unique_ptr<ControlClient>> workers_;  // null: has ended
  std::atomic<bool> ending_{false};
};

absl::StatusOr<std::unique_ptr<CheckpointLoop>> CheckpointLoop::Start(const Job& job,
                                                                      const EpochStart& start,
                                                                      Environment environment) {
  const Tls& tls = job.cluster().tls();
  std::vector<std::unique_ptr<ControlClient>> workers;
  for (const std::string& address : environment.worker_addresses) {
    workers.push_back(nullptr);
    if (address.empty()) continue;
    ASSIGN_OR_RETURN(workers.back(), ControlClient::Create(address, {tls.certificate(),
                                                                     tls.private_key(), tls.ca()}));
  }
  auto calls = std::make_unique<Calls>(job, start, environment.servers, std::move(workers));
  return std::unique_ptr<CheckpointLoop>(
      new CheckpointLoop(job, start, std::move(environment), std::move(calls)));
}

CheckpointLoop::CheckpointLoop(const Job& job, const EpochStart& start, Environment environment,
                               std::unique_ptr<Calls> calls)
    : environment_(std::move(environment)),
      calls_(std::move(calls)),
      requests_(environment_.run_directory),
      keeper_(OptionsFor(job, start, environment_), calls_.get(), environment_.store),
      thread_([this] { Run(); }) {}

CheckpointLoop::~CheckpointLoop() { Stop(); }

void CheckpointLoop::Stop() {
  calls_->End();
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CheckpointLoop::Run() {
  while (true) {
    for (const std::string& id : requests_.TakeNew()) {
      keeper_.Request(
          [this, id](const absl::StatusOr<std::string>& name) { requests_.Answer(id, name); });
    }
    keeper_.Poll();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kPeriod)) return;
  }
}

}  // namespace thermocline
