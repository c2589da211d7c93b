// A parameter server with all that its process gives it: disk, stores, timers and threads.
// thermocline-server has one; in a job without servers (cluster.servers: 0) thermocline-worker has
// it, the embedded server.
#ifndef THERMOCLINE_SERVER_RPC_HOSTED_SERVER_H_
#define THERMOCLINE_SERVER_RPC_HOSTED_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/net/grpc_server.h"
#include "server/core/server_core.h"
#include "server/rpc/parameter_server_service.h"

namespace thermocline {

struct HostedServerOptions {
  ServerLimits limits;     // load_threads 0: one for each processor.
  ServiceOptions service;  // As much as the limits imply may be added to max_pulls.
  std::string data_dir;  // For push logs and rows beyond memory; "": no job that needs it is taken.
  uint64_t incarnation = 0;    // In the names of the checkpoint files that it writes.
  int checkpoint_threads = 0;  // 0: one for every four processors, at most 4.
  // The process ends with this code when its log or its rows beyond memory can't be written: what
  // it acknowledged from then on would be lost.
  int exit_code_if_broken = 1;
};

// The core and its service are thread-safe; the rest belongs to one thread.
class HostedServer {
 public:
  explicit HostedServer(const HostedServerOptions& options);
  // As Shutdown.
  ~HostedServer();

  // Takes calls at options.address. The job id, the service's name and limits of `options` need not
  // be set. Errors: those of GrpcServer::Start.
  absl::Status Serve(GrpcServer::Options options);
  // host:port. REQUIRES: Serve returned OK
  const std::string& address() const;

  ServerCore* core();
  ParameterServerService* service();

  // Answers the held pulls, which would keep calls from ending, and ends all calls. Nothing is
  // served from then on.
  void Shutdown();

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_HOSTED_SERVER_H_
