#include "common/net/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/host_port.h"

namespace thermocline {
namespace {

// gRPC says only that it couldn't bind, so this asks the system why.
std::string WhyNotListen(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return gai_strerror(error);
  std::string reason = "gRPC refused; with GRPC_VERBOSITY=ERROR in the environment it says why";
  const int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  if (fd >= 0) {
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      reason = std::strerror(errno);
    }
    close(fd);
  }
  freeaddrinfo(found);
  return reason;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const Options& options, const std::vector<grpc::Service*>& services) {
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.address, "to listen on"));
  RETURN_IF_ERROR(CheckMayListen(options.address, options.tls, options.insecure));
  ASSIGN_OR_RETURN(const auto credentials, MakeServerCredentials(options.tls, options.job_id));

  // Both are process-wide switches of gRPC and may be repeated.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, credentials, &port);
  SetDataPlaneOptions(options.max_message_bytes, &builder);
  // Threads for the control plane's blocking calls; the data plane runs on gRPC's callback threads.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  if (options.memory_bytes > 0) {
    grpc::ResourceQuota quota("thermocline");
    builder.SetResourceQuota(quota.Resize(options.memory_bytes));
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address, ": ", WhyNotListen(address)));
  }
  std::string bound = JoinHostPort(address.host, static_cast<uint16_t>(port));
  return std::unique_ptr<GrpcServer>(
      new GrpcServer(std::move(server), std::move(bound), options.service));
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::string address,
                       const std::string& service)
    : server_(std::move(server)), address_(std::move(address)) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  if (!service.empty()) health->SetServingStatus(service, true);
  health->SetServingStatus(true);
}

GrpcServer::~GrpcServer() { Shutdown(0); }

void GrpcServer::Shutdown(int grace_ms) {
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
  server_->Wait();
}

absl::Status WritePortFile(const std::string& path, const std::string& address) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream file(temporary, std::ios::trunc);
  file << address << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the port file '", path, "': ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
