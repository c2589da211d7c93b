#include "deploy/runner/node_processes.h"

#include <filesystem>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

// Nodes end with the job: they need this long to hear of it.
constexpr absl::Duration kFarewell = absl::Seconds(3);
constexpr absl::Duration kStopPeriod = absl::Milliseconds(50);

NodeTable::Options TableOptions(const Job& job, const NodeProcessesOptions& options,
                                const RunDirectory& directory) {
  std::random_device random;
  const std::string nonce = absl::StrCat(absl::Hex(random()), absl::Hex(random()));
  NodeTable::Options table;
  table.build = options.build;
  table.host_timeout = absl::Seconds(job.cluster().host_timeout_s());
  table.num_workers = job.cluster().workers();
  NodeOrder& order = table.order;
  order.set_job(job.name());
  order.set_run_dir(std::filesystem::absolute(directory.path()).lexically_normal().string());
  order.set_lease_ms(job.cluster().node_lease_s() * 1000);
  // A new name for each controller: no host has cached that there is no such file.
  order.set_check_file(absl::StrCat("controller-", nonce));
  order.set_check_text(nonce);
  order.set_eval_only(options.eval_only);
  order.set_data_index(std::filesystem::absolute(options.data_index).lexically_normal().string());
  return table;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeProcesses>> NodeProcesses::Create(
    const Job& job, const NodeProcessesOptions& options, const RunDirectory& directory,
    SignalWatch* signals, Supervisor* supervisor) {
  NodeTable::Options table = TableOptions(job, options, directory);
  RETURN_IF_ERROR(directory.Write(table.order.check_file(), table.order.check_text()));
  std::unique_ptr<NodeProcesses> processes(
      new NodeProcesses(options, directory, std::move(table), signals, supervisor));
  GrpcServer::Options server;
  server.address = options.listen;
  server.tls = TlsFilesOf(job.cluster().tls(), Role::kController);
  server.job_id = job.name();
  server.insecure = job.cluster().insecure();
  server.service = Controller::service_full_name();
  ASSIGN_OR_RETURN(processes->server_, GrpcServer::Start(server, {&processes->service_}));
  nlohmann::ordered_json file;
  file["address"] = processes->server_->address();
  RETURN_IF_ERROR(directory.Write(kControllerFile, file.dump(2) + "\n"));
  options.tell(absl::StrCat("listening for nodes on ", processes->server_->address()));
  return processes;
}

NodeProcesses::NodeProcesses(const NodeProcessesOptions& options, const RunDirectory& directory,
                             NodeTable::Options table, SignalWatch* signals, Supervisor* supervisor)
    : options_(options),
      directory_(directory),
      check_file_(table.order.check_file()),
      signals_(*signals),
      supervisor_(*supervisor),
      service_(std::move(table), options.wake) {}

NodeProcesses::~NodeProcesses() {
  if (server_ != nullptr) {
    service_.WithTable([](NodeTable* table) { table->End(); });
    service_.Close(kFarewell);
    server_->Shutdown(/*grace_ms=*/0);
  }
  directory_.Remove(check_file_).IgnoreError();  // It does no harm.
}

void NodeProcesses::BeginGeneration(uint64_t generation,
                                    std::function<void(absl::string_view data)> on_metrics) {
  on_metrics_ = std::move(on_metrics);
  service_.WithTable([generation](NodeTable* table) { table->BeginGeneration(generation); });
}

absl::Status NodeProcesses::Start(const action::StartProcess& start) {
  service_.WithTable([&start](NodeTable* table) { table->Start(start); });
  return absl::OkStatus();
}

std::vector<JobEvent> NodeProcesses::TakeEvents() {
  std::vector<JobEvent> events;
  std::string metrics;
  std::vector<std::string> notices;
  nlohmann::ordered_json places;
  service_.WithTable([&](NodeTable* table) {
    events = table->TakeEvents();
    metrics = table->TakeMetrics();
    notices = table->TakeNotices();
    results_ = table->results();
    places = table->places();
  });
  // Only `thermocline logs` misses it if this fails.
  if (std::exchange(places_, places) != places) {
    directory_.Write(kPlacesFile, places.dump(2) + "\n").IgnoreError();
  }
  for (const std::string& notice : notices) options_.tell(notice);
  if (!metrics.empty()) on_metrics_(metrics);
  return events;
}

// A host that is lost meanwhile has none.
void NodeProcesses::Stop(ProcessRole role, absl::Duration grace) {
  const int requests = signals_.stop_requests();
  service_.WithTable([&](NodeTable* table) { table->Stop(role, grace); });
  const auto all_gone = [&] {
    return service_.WithTable([role](NodeTable* table) { return table->AllGone(role); });
  };
  bool is_hurried = false;
  while (!all_gone()) {
    supervisor_.Poll(kStopPeriod);
    if (signals_.stop_requests() == requests || std::exchange(is_hurried, true)) continue;
    service_.WithTable([role](NodeTable* table) { table->Stop(role, absl::ZeroDuration()); });
  }
}

}  // namespace thermocline
