// Transport over gRPC. Messages are raw bytes; calls to a server take several connections in turn.
// A thread of the transport's own encodes and sends the calls, in their order, so that a caller
// goes on at once.
#ifndef THERMOCLINE_WORKER_SESSION_GRPC_TRANSPORT_H_
#define THERMOCLINE_WORKER_SESSION_GRPC_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/rpc.h"
#include "worker/session/transport.h"

namespace thermocline {

class GrpcTransport final : public Transport {
 public:
  struct Options {
    std::vector<std::string> addresses;  // host:port, by server index
    int channels_per_server = 2;
    TlsFiles tls;
    int max_message_bytes = kDefaultMaxMessageBytes;
  };

  // Connects with the first calls. Errors: MakeChannelCredentials'; kInvalidArgument
  // (channels_per_server or max_message_bytes is out of range).
  static absl::StatusOr<std::unique_ptr<GrpcTransport>> Create(const Options& options);

  // Cancels the calls in flight and waits until every `done` has returned.
  ~GrpcTransport() override;

  // `done` runs on a thread of gRPC's or the transport's, and must not block. Errors name method,
  // server, step and keys: kOutOfRange (the message, or its reply, would be over the limit),
  // kResourceExhausted (the server is full), kUnavailable (no process listens there, or the
  // connection broke), and the server's own (server_core.h).
  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override;
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override;
  void Close() override;

 private:
  struct Impl;
  explicit GrpcTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_GRPC_TRANSPORT_H_
