// The server of a job without server processes (cluster.servers: 0), in the process of its worker.
// The launcher treats it as any other server: it listens, and is configured and asked by calls. The
// worker's pulls and pushes go past gRPC.
//
// This folder alone includes what is in server/, and only thermocline-worker links it.
#ifndef THERMOCLINE_WORKER_EMBEDDED_EMBEDDED_SERVER_H_
#define THERMOCLINE_WORKER_EMBEDDED_EMBEDDED_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "server/rpc/hosted_server.h"
#include "worker/session/transport.h"

namespace thermocline {

// Belongs to one thread.
class EmbeddedServer {
 public:
  struct Options {
    std::string job_id;
    std::string data_dir;         // For rows beyond memory; "": no job that needs it is taken.
    std::string checkpoint_root;  // The job's checkpoints lie below; "": none are made.
  };
  // Serves the job, which is resolved, at a free port of cluster.listen_host. Errors: those of
  // GrpcServer::Start.
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Start(const Job& job,
                                                               const Options& options);

  const std::string& address() const { return server_.address(); }
  // A way to its core, for which the server must stay.
  std::unique_ptr<Transport> MakeTransport();

 private:
  explicit EmbeddedServer(const HostedServerOptions& options);

  const int threads_;
  HostedServer server_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EMBEDDED_EMBEDDED_SERVER_H_
