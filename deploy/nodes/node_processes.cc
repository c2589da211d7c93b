#include "deploy/nodes/node_processes.h"

#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "common/disk/file_list.h"
#include "common/job/resolved_job.h"
#include "common/net/certificates.h"
#include "deploy/nodes/shared_folder.h"
#include "deploy/processes/local_processes.h"

namespace thermocline {
namespace {

// Nodes end with the job. So long it may take until the last order has reached them.
constexpr absl::Duration kAgentsFarewell = absl::Seconds(3);
constexpr absl::Duration kStopPeriod = absl::Milliseconds(50);
// The lifetime of a process's certificate. A new one comes in time.
constexpr absl::Duration kCertificateLifetime = absl::Hours(24);

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
  order.set_run_dir(AbsolutePath(directory.path()));
  order.set_lease_ms(job.cluster().node_lease_s() * 1000);
  // A new name for each controller: no host has cached that there is no such file.
  order.set_check_file(absl::StrCat("controller-", nonce));
  order.set_check_text(nonce);
  order.set_eval_only(options.eval_only);
  order.set_data_index(AbsolutePath(options.data_index));
  return table;
}

// Where the key of the job's authority lies beside the controller's certificate, certificates of
// processes are signed for hosts that have no files for them.
absl::Status SetUpSigning(const Job& job, NodeTable::Options* table) {
  const std::string& folder = job.cluster().tls().directory();
  if (folder.empty() || !HasAuthority(folder)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const CertificateAuthority authority, LoadAuthority(folder));
  if (authority.job() != job.name()) {
    return absl::InvalidArgumentError(absl::StrCat("the authority in '", folder, "' is of job '",
                                                   authority.job(), "', not of job '", job.name(),
                                                   "'"));
  }
  table->order.set_signs_certificates(true);
  table->certificate_period = kCertificateLifetime / 2;
  table->sign = [authority](const std::string& request, ProcessRole role,
                            const std::string& address) {
    return authority.Sign(request, CertificateRole(role), {address}, kCertificateLifetime);
  };
  return absl::OkStatus();
}

}  // namespace

bool HasAuthority(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(folder + "/ca.key", error);
}

absl::StatusOr<std::unique_ptr<NodeProcesses>> NodeProcesses::Create(
    const Job& job, const NodeProcessesOptions& options, const RunDirectory& directory,
    SignalWatch* signals, Supervisor* supervisor) {
  NodeTable::Options table = TableOptions(job, options, directory);
  RETURN_IF_ERROR(SetUpSigning(job, &table));
  const FolderMark mark = {table.order.check_file(), table.order.check_text()};
  std::vector<std::string> folders = {directory.path()};
  if (WritesCheckpoints(job) && !options.eval_only) folders.push_back(job.checkpoint().directory());
  if (!job.calibration().directory().empty()) folders.push_back(job.calibration().directory());
  PosixDisk disk;
  RETURN_IF_ERROR(PutMarks(&disk, folders, mark));
  std::unique_ptr<NodeProcesses> processes(
      new NodeProcesses(options, directory, std::move(table), signals, supervisor));
  processes->marked_folders_ = std::move(folders);
  processes->mark_ = mark;
  GrpcServer::Options server;
  server.address = options.listen;
  server.tls = TlsFilesOf(job.cluster().tls(), Role::kController);
  server.job_id = job.name();
  if (!server.tls.empty()) KeepGrpcQuiet(/*logs_handshakes=*/true);
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
      signals_(*signals),
      supervisor_(*supervisor),
      service_(std::move(table), options.wake) {}

NodeProcesses::~NodeProcesses() {
  if (server_ != nullptr) {
    service_.WithTable([](NodeTable* table) { table->End(); });
    service_.Close(kAgentsFarewell);
    server_->Shutdown(/*grace_ms=*/0);
  }
  PosixDisk disk;
  for (const std::string& folder : marked_folders_) RemoveMark(&disk, folder, mark_);
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
  std::optional<std::vector<nlohmann::ordered_json>> results;
  std::optional<nlohmann::ordered_json> places;
  service_.WithTable([&](NodeTable* table) {
    events = table->TakeEvents();
    metrics = table->TakeMetrics();
    notices = table->TakeNotices();
    results = table->TakeResults();
    places = table->TakePlaces();
  });
  if (results.has_value()) results_ = *std::move(results);
  if (places.has_value()) {
    // Only `thermocline logs` misses it if this fails.
    directory_.Write(kPlacesFile, places->dump(2) + "\n").IgnoreError();
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
