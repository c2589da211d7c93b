// The control plane of one server or worker, as launchers and workers call it: one blocking call
// per method, each with a timeout. Thread-safe.
#ifndef THERMOCLINE_COMMON_NET_CONTROL_CLIENT_H_
#define THERMOCLINE_COMMON_NET_CONTROL_CLIENT_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/net/rpc.h"
#include "proto/parameter_server.grpc.pb.h"

namespace thermocline {

class ControlClient {
 public:
  // Connects with the first call. Errors: those of MakeChannelCredentials.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Create(const std::string& address,
                                                               const TlsFiles& tls);

  const std::string& address() const { return address_; }

  // Every error names the method and the address. All methods may return kUnavailable (no process
  // listens there, or the handshake failed: says why), kDeadlineExceeded, kPermissionDenied (our
  // certificate is of another job or role).

  // Also kFailedPrecondition (another protocol version; configured already, and differently),
  // kInvalidArgument.
  absl::StatusOr<ConfigureReply> Configure(const ConfigureRequest& request, absl::Duration timeout);
  absl::StatusOr<ServerStats> GetStats(absl::Duration timeout);
  // Also kFailedPrecondition (not configured; another job or generation), kResourceExhausted (the
  // server computes another digest).
  absl::StatusOr<GetDigestReply> GetDigest(const std::string& job_id, uint64_t generation,
                                           absl::Duration timeout);
  // Calls a server. Every action may be repeated. Also kFailedPrecondition (not configured; another
  // job or generation; too late to name this cut), kInvalidArgument.
  absl::StatusOr<CheckpointReply> Checkpoint(const CheckpointRequest& request,
                                             absl::Duration timeout);

  // The methods below call a worker.

  absl::StatusOr<WorkerStats> GetWorkerStats(absl::Duration timeout);
  // NAME_CUT and CALL_OFF. Also kFailedPrecondition (another job or generation; too late to name
  // this cut), kInvalidArgument.
  absl::StatusOr<CheckpointReply> CheckpointWorker(const CheckpointRequest& request,
                                                   absl::Duration timeout);
  // Also kFailedPrecondition (another job or generation).
  absl::Status Decide(const EvaluationDecision& decision, absl::Duration timeout);
  // Also kFailedPrecondition (another job or generation; other addresses than before).
  absl::Status Introduce(const WorkerPeers& peers, absl::Duration timeout);

 private:
  ControlClient(std::string address, TlsFiles tls, std::shared_ptr<grpc::Channel> channel);

  template <typename Reply, typename Stub, typename Request>
  absl::StatusOr<Reply> Call(
      Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
      absl::string_view name, const Request& request, absl::Duration timeout);

  const std::string address_;
  const TlsFiles tls_;
  const std::unique_ptr<ParameterServer::Stub> server_;
  const std::unique_ptr<Worker::Stub> worker_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_CONTROL_CLIENT_H_
