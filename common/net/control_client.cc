#include "common/net/control_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

// Stats of thousands of tables stay far below this.
constexpr int kMaxControlMessageBytes = 64 << 20;

// For each wait of ExplainHandshake.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(2);

// Whether a call may have failed in a handshake. In plain text that is so only where a connection
// was made: a process that does not answer is not waited for twice.
bool MayBeTls(absl::string_view error, const TlsFiles& tls) {
  return absl::StartsWith(error, "failed to connect") &&
         (!tls.empty() || absl::StrContains(error, "closed") || absl::StrContains(error, "reset") ||
          absl::StrContains(error, "SETTINGS"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Create(const std::string& address,
                                                                     const TlsFiles& tls) {
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(tls));
  return std::unique_ptr<ControlClient>(
      new ControlClient(address, tls, OpenChannel(address, credentials, kMaxControlMessageBytes)));
}

ControlClient::ControlClient(std::string address, TlsFiles tls,
                             std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)),
      tls_(std::move(tls)),
      server_(ParameterServer::NewStub(channel)),
      worker_(Worker::NewStub(channel)) {}

// An error begins with the method's name and the address, then the process names itself:
// "Configure at 127.0.0.1:4000: server 0: ...".
template <typename Reply, typename Stub, typename Request>
absl::StatusOr<Reply> ControlClient::Call(
    Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    absl::string_view name, const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (status.ok()) return reply;
  const absl::Status error = FromGrpcStatusOfAnswer(status);
  const std::string where = absl::StrCat(name, " at ", address_);
  if (MayBeTls(error.message(), tls_)) {
    const std::string why = ExplainHandshake(address_, tls_, std::min(timeout, kHandshakeTimeout));
    if (!why.empty()) return absl::Status(error.code(), absl::StrCat(where, ": ", why));
  }
  absl::string_view message = error.message();
  // The server's message names the call, too.
  absl::ConsumePrefix(&message, absl::StrCat(name, " at "));
  return WithContext(absl::Status(error.code(), message), where);
}

absl::StatusOr<ConfigureReply> ControlClient::Configure(const ConfigureRequest& request,
                                                        absl::Duration timeout) {
  return Call(*server_, &ParameterServer::Stub::Configure, "Configure", request, timeout);
}

absl::StatusOr<ServerStats> ControlClient::GetStats(absl::Duration timeout) {
  return Call(*server_, &ParameterServer::Stub::GetStats, "GetStats", GetStatsRequest(), timeout);
}

absl::StatusOr<GetDigestReply> ControlClient::GetDigest(const std::string& job_id,
                                                        uint64_t generation,
                                                        absl::Duration timeout) {
  GetDigestRequest request;
  request.set_job_id(job_id);
  request.set_generation(generation);
  return Call(*server_, &ParameterServer::Stub::GetDigest, "GetDigest", request, timeout);
}

absl::StatusOr<CheckpointReply> ControlClient::Checkpoint(const CheckpointRequest& request,
                                                          absl::Duration timeout) {
  return Call(*server_, &ParameterServer::Stub::Checkpoint, "Checkpoint", request, timeout);
}

absl::StatusOr<WorkerStats> ControlClient::GetWorkerStats(absl::Duration timeout) {
  return Call(*worker_, &Worker::Stub::GetStats, "GetStats", GetStatsRequest(), timeout);
}

absl::StatusOr<CheckpointReply> ControlClient::CheckpointWorker(const CheckpointRequest& request,
                                                                absl::Duration timeout) {
  return Call(*worker_, &Worker::Stub::Checkpoint, "Checkpoint", request, timeout);
}

absl::Status ControlClient::Decide(const EvaluationDecision& decision, absl::Duration timeout) {
  return Call(*worker_, &Worker::Stub::Decide, "Decide", decision, timeout).status();
}

absl::Status ControlClient::Introduce(const WorkerPeers& peers, absl::Duration timeout) {
  return Call(*worker_, &Worker::Stub::Introduce, "Introduce", peers, timeout).status();
}

}  // namespace thermocline
