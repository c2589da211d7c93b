#include "deploy/processes/local_processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "common/job/data_place.h"
#include "common/job/resolved_job.h"
#include "common/job/server_settings.h"
#include "common/net/host_port.h"
#include "common/process/child_process.h"
#include "common/trace/process_trace.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPortFilePeriod = absl::Milliseconds(5);

// The address in a port file, or "" while there is none. The file appears whole.
std::string ReadPortFile(const std::string& path) {
  std::ifstream file(path);
  std::string address;
  std::getline(file, address);
  return address;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

// Checks that the processes of a job, which inherit our limit, can open their connections.
absl::Status CheckOpenFilesOf(const Cluster& cluster) {
  const uint64_t servers = cluster.servers(), workers = cluster.workers();
  RETURN_IF_ERROR(CheckOpenFiles("the launcher", servers + workers));
  RETURN_IF_ERROR(CheckOpenFiles("a server", 1 + workers * cluster.channels_per_server()));
  return CheckOpenFiles("a worker", 1 + servers * cluster.channels_per_server());
}

// Whether a table may have more rows than fit in memory.
bool SpillsRows(const Job& job) {
  const std::vector<TableLayout> layouts = ResolveTables(job).AllLayouts();
  return std::any_of(layouts.begin(), layouts.end(),
                     [](const TableLayout& table) { return table.memory_budget_bytes > 0; });
}

std::vector<std::string> ServerCommand(const std::string& program, const Job& job,
                                       const std::string& listen, const std::string& port_file) {
  const auto [apply_threads, handler_threads, max_pending_bytes, max_held_pulls, max_message_bytes,
              init_root] = ServerSettingsOf(job);
  std::vector<std::string> command = {
      program,
      absl::StrCat("--listen=", listen),
      absl::StrCat("--port_file=", port_file),
      absl::StrCat("--job_id=", job.name()),
      absl::StrCat("--apply_threads=", apply_threads),
      absl::StrCat("--handler_threads=", handler_threads),
      absl::StrCat("--max_pending_bytes=", max_pending_bytes),
      absl::StrCat("--max_held_pulls=", max_held_pulls),
      absl::StrCat("--max_message_bytes=", max_message_bytes),
  };
  if (WritesCheckpoints(job)) {
    command.push_back(absl::StrCat("--checkpoint_root=", job.checkpoint().directory()));
  }
  if (!init_root.empty()) command.push_back(absl::StrCat("--init_root=", init_root));
  if (job.cluster().insecure()) command.push_back("--insecure");
  return command;
}

void AddTlsFlags(const TlsFiles& tls, std::vector<std::string>* command) {
  if (tls.empty()) return;
  command->push_back(absl::StrCat("--tls_certificate=", tls.certificate));
  command->push_back(absl::StrCat("--tls_private_key=", tls.private_key));
  command->push_back(absl::StrCat("--tls_ca=", tls.ca));
}

// Whether the file is a wrapper of deploy/package.sh: a script that starts a program of
// "programs/".
absl::StatusOr<bool> ExtendByFile(const std::string& path, uint32_t* crc) {
  std::ifstream file(path, std::ios::binary);
  std::string block(1 << 20, '\0');
  std::string begin;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    if (begin.empty()) begin = block.substr(0, std::min<size_t>(file.gcount(), 4096));
    *crc = ExtendCrc32c(*crc, block.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) return absl::UnavailableError(absl::StrCat("can't read ", path));
  return absl::StartsWith(begin, "#!") && absl::StrContains(begin, "/programs/");
}

}  // namespace

Role CertificateRole(ProcessRole role) {
  return role == ProcessRole::kServer ? Role::kServer : Role::kWorker;
}

std::string ProcessFileName(absl::string_view name, absl::string_view extension) {
  return absl::StrCat(absl::StrReplaceAll(name, {{" ", "-"}}), ".", extension);
}

std::string ProcessFile(const RunDirectory& directory, absl::string_view name,
                        absl::string_view extension) {
  return directory.File(ProcessFileName(name, extension));
}

absl::StatusOr<std::string> DigestOfPrograms(const JobPrograms& programs) {
  std::string digest = programs.build;
  for (const std::string& path : {programs.server, programs.worker}) {
    uint32_t crc = 0;
    ASSIGN_OR_RETURN(const bool is_wrapper, ExtendByFile(path, &crc));
    if (is_wrapper) {  // What it starts lies beside it.
      const std::filesystem::path wrapper(path);
      const auto program = wrapper.parent_path().parent_path() / "programs" / wrapper.filename();
      RETURN_IF_ERROR(ExtendByFile(program.string(), &crc).status());
    }
    absl::StrAppend(&digest, "-", absl::Hex(crc, absl::kZeroPad8));
  }
  return digest;
}

absl::Status RemoveServerData(const RunDirectory& directory) {
  PosixDisk disk;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, disk.List(directory.path()));
  for (const std::string& name : names) {
    absl::string_view number = name;
    uint32_t index = 0;
    if (!absl::ConsumePrefix(&number, "server-") || !absl::ConsumeSuffix(&number, ".data") ||
        !absl::SimpleAtoi(number, &index) || absl::StrCat(index) != number) {
      continue;
    }
    std::error_code error;
    std::filesystem::remove_all(directory.File(name), error);
    if (!error) continue;
    return absl::UnavailableError(
        absl::StrCat("can't remove ", directory.File(name), ": ", error.message()));
  }
  return absl::OkStatus();
}

LocalProcesses::LocalProcesses(const Job& job, const JobPrograms& programs,
                               const RunDirectory& directory, LocalProcessesOptions options,
                               Supervisor* supervisor)
    : job_(job),
      programs_(programs),
      directory_(directory),
      options_(std::move(options)),
      has_embedded_server_(HasEmbeddedServer(job.cluster())),
      supervisor_(*supervisor),
      result_fds_(job.cluster().workers(), -1),
      results_(job.cluster().workers()) {}

LocalProcesses::~LocalProcesses() { CloseResults(); }

TlsFiles LocalProcesses::TlsOf(const ProcessId& id) const {
  TlsFiles files = TlsFilesOf(job_.cluster().tls(), CertificateRole(id.role));
  if (!NeedsOwnCertificate(id.role)) return files;
  files.certificate = ProcessFile(directory_, id.Name(), "pem");
  files.private_key = ProcessFile(directory_, id.Name(), "key");
  files.ca = options_.own_ca;
  return files;
}

bool LocalProcesses::NeedsOwnCertificate(ProcessRole role) const {
  const TlsFiles files = TlsFilesOf(job_.cluster().tls(), CertificateRole(role));
  return !files.empty() && !options_.own_ca.empty() && access(files.certificate.c_str(), F_OK) != 0;
}

void LocalProcesses::CloseResults() {
  for (int& fd : result_fds_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

void LocalProcesses::BeginGeneration(uint64_t /*generation*/,
                                     std::function<void(absl::string_view data)> on_metrics) {
  CloseResults();
  embedded_worker_.reset();
  results_.assign(job_.cluster().workers(), {});
  on_metrics_ = std::move(on_metrics);
}

absl::Duration LocalProcesses::UntilNextLook() const {
  return coming_up_.empty() ? absl::InfiniteDuration() : kPortFilePeriod;
}

// Starts
// ------------------------------------------------------------------------------------------------

absl::Status LocalProcesses::Start(const action::StartProcess& start) {
  if (has_embedded_server_ && start.id.role == ProcessRole::kWorker) {
    embedded_worker_ = start.id;  // It runs since its server was started.
  } else {
    // Otherwise the port file of the process before would be taken for this one's.
    RETURN_IF_ERROR(directory_.Remove(ProcessFileName(start.id.Name(), "port")));
    RETURN_IF_ERROR(start.id.role == ProcessRole::kServer ? StartServer(start)
                                                          : StartWorker(start));
  }
  coming_up_.push_back(start.id);
  return absl::OkStatus();
}

absl::Status LocalProcesses::StartServer(const action::StartProcess& start) {
  if (start.address.empty()) RETURN_IF_ERROR(CheckOpenFilesOf(job_.cluster()));
  if (has_embedded_server_) return StartWorker(start);
  ChildProcessOptions options;
  options.name = start.id.Name();
  options.command = ServerCommand(
      programs_.server, job_,
      start.address.empty() ? JoinHostPort(job_.cluster().listen_host(), 0) : start.address,
      ProcessFile(directory_, options.name, "port"));
  options.command.push_back(absl::StrCat("--incarnation=", start.id.incarnation));
  if (job_.has_trace()) {  // Beside the job file, of which all hosts have the same.
    const auto folder = std::filesystem::path(options_.job_file).parent_path() / kTraceFolder;
    options.command.push_back(absl::StrCat("--trace_root=", folder.string()));
  }
  AddTlsFlags(TlsOf(start.id), &options.command);
  if (const std::string folder = DataFolder(start.id.index); !folder.empty()) {
    options.command.push_back(absl::StrCat("--data_dir=", folder));
  }
  options.log_path = ProcessFile(directory_, options.name, "log");
  return supervisor_.Start(start.id, options);
}

std::string LocalProcesses::DataFolder(uint32_t server) const {
  if (job_.cluster().durability() == NONE && !SpillsRows(job_)) return "";
  return ProcessFile(directory_, ProcessName(ProcessRole::kServer, server), "data");
}

// Starts a worker, or the one process of an embedded server and its worker.
absl::Status LocalProcesses::StartWorker(const action::StartProcess& start) {
  const uint32_t rank = start.id.index;
  ProcessId id = start.id;
  id.role = ProcessRole::kWorker;
  RETURN_IF_ERROR(MakeResultFile(rank));
  ChildProcessOptions options;
  options.name = id.Name();
  options.command = {
      programs_.worker,
      absl::StrCat("--job=", options_.job_file),
      absl::StrCat("--rank=", rank),
      absl::StrCat("--local_rank=", start.local_rank),
      absl::StrCat("--generation=", start.id.generation),
      absl::StrCat("--port_file=", ProcessFile(directory_, options.name, "port")),
      absl::StrCat("--result_file=/dev/fd/", result_fds_[rank]),
      absl::StrCat("--data_index=", options_.data_index),
  };
  if (has_embedded_server_) {
    RETURN_IF_ERROR(directory_.Remove(ProcessFileName(id.Name(), "port")));
    options.command.push_back(
        absl::StrCat("--embedded_port_file=", ProcessFile(directory_, start.id.Name(), "port")));
    options.command.push_back(absl::StrCat("--embedded_data_dir=", DataFolder(start.id.index)));
    if (WritesCheckpoints(job_)) {
      options.command.push_back(
          absl::StrCat("--embedded_checkpoint_root=", job_.checkpoint().directory()));
    }
  } else {
    options.command.push_back(absl::StrCat("--servers=", absl::StrJoin(start.servers, ",")));
  }
  if (start.first_step > Step(0)) {
    options.command.push_back(absl::StrCat("--start_step=", start.first_step.value()));
  }
  if (!start.data_place.empty()) {
    options.command.push_back(absl::StrCat("--schedule=", DataPlaceToText(start.data_place)));
  }
  if (options_.workers_are_reached) {
    options.command.push_back(
        absl::StrCat("--listen=", JoinHostPort(job_.cluster().listen_host(), 0)));
  }
  if (options_.eval_only) options.command.push_back("--eval_only");
  AddTlsFlags(TlsOf(id), &options.command);
  options.log_path = ProcessFile(directory_, options.name, "log");
  if (rank != 0) return supervisor_.Start(start.id, options);
  ASSIGN_OR_RETURN(options.inherited_fd, MakeMetricsPipe());
  options.command.push_back("--progress_fd=3");
  const absl::Status started = supervisor_.Start(start.id, options);
  close(options.inherited_fd);
  return started;
}

// The worker opens it by its number, which it inherits: not closed by exec.
absl::Status LocalProcesses::MakeResultFile(uint32_t rank) {
  const int fd = MakeMemoryFile("worker result");
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("no memory for a worker's result: ", std::strerror(errno)));
  }
  result_fds_[rank] = fd;
  return absl::OkStatus();
}

// Returns the end that is written to.
absl::StatusOr<int> LocalProcesses::MakeMetricsPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
  }
  metrics_ended_ = false;
  supervisor_.ReadFrom(ends[0], [this, id = ++metrics_of_](absl::string_view data) {
    if (id != metrics_of_) return;  // The pipe of the generation before.
    metrics_ended_ = data.empty();
    if (!data.empty()) on_metrics_(data);
  });
  return ends[1];
}

// Ends
// ------------------------------------------------------------------------------------------------

bool LocalProcesses::LookForAddress(const ProcessId& id, std::vector<JobEvent>* events) {
  std::string address = ReadPortFile(ProcessFile(directory_, id.Name(), "port"));
  if (address.empty()) return false;
  events->push_back(event::ProcessStarted{id, std::move(address)});
  return true;
}

event::WorkerResult LocalProcesses::ReadResult(const ProcessId& id) {
  absl::StatusOr<nlohmann::ordered_json> result = ParseWorkerResult(
      ReadAll(result_fds_[id.index]), directory_.File(ProcessFileName(id.Name(), "json")));
  if (!result.ok()) return {id, result.status()};
  results_[id.index] = *std::move(result);
  return {id, std::llround(NumberAt(results_[id.index], "steps").value_or(0))};
}

// A worker with an embedded server is done when its metrics have ended and its result is whole,
// which a line feed at the end shows; its process serves on. The end of the process itself is seen
// in TakeEvents.
void LocalProcesses::LookForEmbeddedEnd(std::vector<JobEvent>* events) {
  if (!embedded_worker_.has_value() || !metrics_ended_) return;
  if (!absl::EndsWith(ReadAll(result_fds_[embedded_worker_->index]), "\n")) return;
  events->push_back(ReadResult(*embedded_worker_));
  events->push_back(event::ProcessEnded{*embedded_worker_, {kExitDone, "is done", "", ""}});
  embedded_worker_.reset();
}

std::vector<JobEvent> LocalProcesses::TakeEvents() {
  std::vector<JobEvent> events;
  // Ends first: a process writes its port file before it ends.
  std::vector<Supervisor::Ended> ended = supervisor_.TakeEnded();
  ended.insert(ended.begin(), held_back_.begin(), held_back_.end());
  held_back_.clear();
  coming_up_.erase(std::remove_if(coming_up_.begin(), coming_up_.end(),
                                  [&](const ProcessId& id) { return LookForAddress(id, &events); }),
                   coming_up_.end());
  LookForEmbeddedEnd(&events);
  for (Supervisor::Ended& each : ended) {
    if (embedded_worker_.has_value()) {
      events.push_back(event::ProcessEnded{*embedded_worker_, each.end});
      embedded_worker_.reset();
      coming_up_.clear();
    }
    coming_up_.erase(std::remove(coming_up_.begin(), coming_up_.end(), each.id), coming_up_.end());
    if (each.id.role == ProcessRole::kWorker && each.end.exit_code == 0) {
      if (each.id.index == 0 && !metrics_ended_) {
        held_back_.push_back(std::move(each));
        continue;
      }
      events.push_back(ReadResult(each.id));
    }
    events.push_back(event::ProcessEnded{each.id, std::move(each.end)});
  }
  return events;
}

void LocalProcesses::Stop(ProcessRole role, absl::Duration grace) {
  supervisor_.Stop(role, grace);
  const auto is_of_role = [role](const ProcessId& id) { return id.role == role; };
  coming_up_.erase(std::remove_if(coming_up_.begin(), coming_up_.end(), is_of_role),
                   coming_up_.end());
  if (role != ProcessRole::kWorker) return;
  held_back_.clear();
  embedded_worker_.reset();
}

}  // namespace thermocline
