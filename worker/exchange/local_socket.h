// The Unix sockets over which workers on one host send each other blocks (docs/performance.md has
// what they cost beside TCP over loopback).
//
// A socket's name has its worker's address, the network namespace, and the boot of the host: within
// these only one process at a time listens on an address. So a worker that knows another worker's
// address, and reaches its socket, reaches no other process. (The hello checks the rest: job,
// generation, ranks.) The sockets are in a folder that only its user may enter. That takes the
// place of TLS, whose keys the same user may read.
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

// Returns thermocline-exchange-UID in TMPDIR, or in /tmp.
std::string LocalSocketFolder();

// Returns the path of the socket of the worker that listens on `address` (host:port) in this
// network namespace, whether there is one or not. Errors: kFailedPrecondition (the path can't be a
// socket's, since it is too long or has characters that gRPC does not take there; the namespace is
// not known).
absl::StatusOr<std::string> LocalSocketPath(const std::string& folder, const std::string& address);

// Checks that a worker can be reached at the path now. Errors: kNotFound (there is no socket, or no
// process listens on it), kPermissionDenied (others than this user may enter its folder).
absl::Status CheckLocalSocket(const std::string& path);

// Returns gRPC's target for such a path.
std::string LocalSocketTarget(const std::string& path);

// A listening socket. It serves Worker.Exchange, and refuses calls of all other methods with
// PERMISSION_DENIED.
class LocalSocket {
 public:
  // Listens for the worker at `address`, and hands streams to `exchange`, which must outlive it.
  // Makes the folder, and removes sockets of this host in it that are older than a minute and whose
  // processes are gone. Errors: LocalSocketPath's; kPermissionDenied (as CheckLocalSocket's),
  // kUnavailable.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(const std::string& folder,
                                                             const std::string& address,
                                                             GrpcExchangeServer* exchange);
  // Removes the socket.
  ~LocalSocket();

  const std::string& path() const { return path_; }
  // See GrpcServer::Shutdown.
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
