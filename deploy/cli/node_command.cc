// thermocline node, thermocline logs: a job over several hosts, beside `train --nodes`.
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/rpc.h"
#include "deploy/cli/console.h"
#include "deploy/cli/host_commands.h"
#include "deploy/cli/run_setup.h"
#include "deploy/node/node.h"
#include "deploy/runner/child_process.h"
#include "deploy/runner/node_processes.h"
#include "proto/node.grpc.pb.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLogTimeoutS = 20;

// An object, or null.
Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  return json.is_object() ? json : Json();
}

std::string TextAt(const Json& json, const char* name) {
  return json.is_object() && json.contains(name) && json[name].is_string()
             ? json[name].get<std::string>()
             : "";
}

void Print(const std::string& title, const std::vector<std::string>& lines) {
  std::printf("== %s\n", title.c_str());
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}

// Of a job over several hosts: from the process's host, or where it is.
class HostLogs {
 public:
  HostLogs(std::string address, const TlsFiles& tls, const std::string& run_dir)
      : address_(std::move(address)), places_(ReadJson(absl::StrCat(run_dir, "/", kPlacesFile))) {
    const auto credentials = MakeChannelCredentials(tls);
    if (!credentials.ok()) {
      status_ = credentials.status();
      return;
    }
    stub_ = Controller::NewStub(OpenChannel(address_, *credentials, kDefaultMaxMessageBytes));
  }

  absl::Status Show(const std::string& process, uint32_t max_lines) {
    LogLines reply;
    if (status_.ok()) status_ = Ask(process, max_lines, &reply);
    if (status_.ok()) {
      Print(absl::StrCat(process, " on host ", reply.host(), ": ", reply.path()),
            {reply.lines().begin(), reply.lines().end()});
      return absl::OkStatus();
    }
    if (!places_.contains(process)) return status_;
    const Json& place = places_[process];
    Print(absl::StrCat(process, " ran on host ", TextAt(place, "host"),
                       ", its log: ", TextAt(place, "log")),
          {});
    return absl::OkStatus();
  }
  // Why the logs did not come; OK: they did.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Ask(const std::string& process, uint32_t max_lines, LogLines* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kLogTimeoutS));
    LogRequest request;
    request.set_process(process);
    request.set_max_lines(max_lines);
    return WithContext(FromGrpcStatus(stub_->GetLog(&context, request, reply)),
                       absl::StrCat("controller ", address_));
  }

  const std::string address_;
  Json places_;
  std::unique_ptr<Controller::Stub> stub_;
  absl::Status status_;
};

absl::Status ShowLogs(const LogsFlags& flags) {
  ASSIGN_OR_RETURN(const RunDirectory directory, RunDirectory::Open(flags.run_dir));
  ASSIGN_OR_RETURN(const Job job, LoadJob(directory.File("job.textproto"), {}));
  std::vector<std::string> processes;
  for (uint32_t i = 0; i < job.cluster().servers(); ++i) {
    processes.push_back(ProcessName(ProcessRole::kServer, i));
  }
  for (uint32_t i = 0; i < job.cluster().workers(); ++i) {
    processes.push_back(ProcessName(ProcessRole::kWorker, i));
  }
  if (!flags.process.empty()) {
    const std::string wanted = absl::StrReplaceAll(flags.process, {{"-", " "}});
    if (std::find(processes.begin(), processes.end(), wanted) == processes.end()) {
      return absl::NotFoundError(absl::StrCat("the job in ", flags.run_dir, " has no process '",
                                              flags.process, "'; it has ", processes.front(),
                                              " to ", processes.back()));
    }
    processes = {wanted};
  }
  const uint32_t max_lines = static_cast<uint32_t>(flags.lines);
  const std::string controller = TextAt(ReadJson(directory.File(kControllerFile)), "address");
  if (controller.empty()) {
    for (const std::string& process : processes) {
      const std::string path = ProcessFile(directory, process, "log");
      Print(absl::StrCat(process, ": ", path), LogTail(path, static_cast<int>(max_lines)));
    }
    return absl::OkStatus();
  }
  TlsFiles tls = {flags.tls_certificate, flags.tls_private_key, flags.tls_ca};
  if (tls.empty()) tls = TlsFilesOf(job.cluster().tls(), Role::kReader);
  HostLogs logs(controller, tls, directory.path());
  for (const std::string& process : processes) {
    RETURN_IF_ERROR(logs.Show(process, max_lines));
  }
  return absl::OkStatus();
}

}  // namespace

int RunNodeCommand(const NodeFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  NodeOptions options;
  options.controller = flags.controller;
  options.name = flags.name;
  options.address = flags.address;
  options.dir = flags.dir;
  const auto takes = [&flags](const char* role) {
    return flags.roles.empty() ||
           std::find(flags.roles.begin(), flags.roles.end(), role) != flags.roles.end();
  };
  options.takes_servers = takes("server");
  options.takes_workers = takes("worker");
  options.tls = {flags.tls_certificate, flags.tls_private_key, flags.tls_ca};
  options.insecure = flags.insecure;
  JobFlags programs;
  programs.bin_dir = flags.bin_dir;
  const auto found = FindProgramsOf(programs);
  if (!found.ok()) return Complain(found.status().message(), kExitUsage);
  options.programs = *found;
  const absl::Status status = RunNode(options, &signals);
  if (status.ok()) return kExitDone;
  return Complain(status.message(), absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed);
}

int RunLogs(const LogsFlags& flags) {
  const absl::Status shown = ShowLogs(flags);
  return shown.ok() ? kExitDone : Complain(shown.message(), kExitUsage);
}

}  // namespace thermocline
