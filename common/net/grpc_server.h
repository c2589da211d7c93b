// A listening gRPC server, for thermocline-server and thermocline-worker. Reflection and the
// standard health service are on.
#ifndef THERMOCLINE_COMMON_NET_GRPC_SERVER_H_
#define THERMOCLINE_COMMON_NET_GRPC_SERVER_H_

#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/rpc.h"

namespace thermocline {

class GrpcServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // host:port; port 0 takes a free one
    TlsFiles tls;
    std::string job_id;     // Peers with a role must be of this job (MakeServerCredentials).
    bool insecure = false;  // Allows plain text beyond loopback.
    int max_message_bytes = kDefaultMaxMessageBytes;
    // gRPC may use so much memory for all calls together, received messages included. Beyond that
    // it stops reading, and refuses calls with RESOURCE_EXHAUSTED. 0: no limit.
    uint64_t memory_bytes = 0;
    // Health checks are answered for this service (...::service_full_name()) and for "", the
    // server.
    std::string service;
  };

  // Serves `services`, which outlive the server.
  // Errors: kInvalidArgument, kNotFound (as MakeServerCredentials; malformed address),
  //         kUnavailable (the port is in use, or the host is not this machine's; says which).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const Options& options, const std::vector<grpc::Service*>& services);
  ~GrpcServer();

  // host:port, with the port that the server listens on.
  const std::string& address() const { return address_; }

  // Refuses new calls, lets those in flight end for `grace_ms`, then cancels them. Returns when no
  // handler runs any more.
  void Shutdown(int grace_ms);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, std::string address, const std::string& service);

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Writes `address` and a line feed, so that a reader sees all of it or no file.
absl::Status WritePortFile(const std::string& path, const std::string& address);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_GRPC_SERVER_H_
