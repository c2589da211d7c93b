// The Unix sockets over which workers on one host send each other blocks (docs/performance.md has
// what they cost beside TCP over loopback).
//
// A socket's name says on which address its worker listens, in which network namespace, and since
// which boot of the host: there only one process at a time listens on an address. So a worker that
// knows another's address and can reach its socket reaches no other process. (The hello says the
// rest: job, generation, ranks.) The sockets lie in a folder that only its user may enter, which
// stands in for TLS, whose keys the same user may read.
#ifndef THERMOCLINE_WORKER_EXCHANGE_LOCAL_SOCKET_H_
#define THERMOCLINE_WORKER_EXCHANGE_LOCAL_SOCKET_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/exchange/grpc_exchange_server.h"

namespace thermocline {

// thermocline-exchange-UID in TMPDIR, or in /tmp.
std::string LocalSocketFolder();

// The path of the socket of the worker that listens on `address` (host:port) in this network
// namespace, whether there is one or not.
// Errors: kFailedPrecondition (no path of a socket: too long, or with characters that gRPC does not
// take in one; the namespace is not known).
absl::StatusOr<std::string> LocalSocketPath(const std::string& folder, const std::string& address);

// Whether a worker can be reached at the path now. Errors: kNotFound (no socket, or nothing that
// listens on it), kPermissionDenied (others than this user may enter its folder).
absl::Status CheckLocalSocket(const std::string& path);

// What gRPC calls such a path.
std::string LocalSocketTarget(const std::string& path);

// A listening socket. It serves Worker.Exchange and nothing else: calls of all other methods are
// refused with PERMISSION_DENIED.
class LocalSocket {
 public:
  // For the worker that listens on `address`, with the streams of `exchange`, which outlives it.
  // Makes the folder, and removes sockets of this host in it whose processes were killed more than
  // a minute ago. Errors: of LocalSocketPath; kPermissionDenied (as CheckLocalSocket),
  // kUnavailable.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(const std::string& folder,
                                                             const std::string& address,
                                                             GrpcExchangeServer* exchange);
  // Removes it.
  ~LocalSocket();

  const std::string& path() const { return path_; }
  // As GrpcServer's.
  void Shutdown(int grace_ms);

 private:
  class Service;
  LocalSocket(std::string path, GrpcExchangeServer* exchange);

  const std::string path_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_LOCAL_SOCKET_H_
