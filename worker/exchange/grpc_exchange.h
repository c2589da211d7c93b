// ExchangeTransport over gRPC. Each ordered pair of ranks has a bidirectional stream, which the
// rank opens whose blocks it carries, over a connection of its own: over a Unix socket if the other
// worker can be reached so (local_socket.h), else over TCP. The streams that other workers open
// come through GrpcExchangeServer.
#ifndef THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_H_
#define THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/net/rpc.h"
#include "worker/exchange/exchange_transport.h"
#include "worker/exchange/grpc_exchange_server.h"

namespace thermocline {

class GrpcExchange final : public ExchangeTransport {
 public:
  struct Options {
    std::vector<std::string> addresses;  // [num_workers] host:port, by rank
    TlsFiles tls;                        // For connections over TCP.
    int max_message_bytes = kDefaultMaxMessageBytes;
    // A peer that does not answer for twice this time is gone, even if its connection stays.
    int keepalive_ms = 10'000;
    std::string socket_folder;  // The folder of the workers' Unix sockets; "": TCP only.
  };

  // Makes the transport of the worker that `server` serves. `server` must outlive it. It connects
  // with the first streams. Errors: MakeChannelCredentials'; kInvalidArgument (the number of
  // addresses is not that of workers).
  static absl::StatusOr<std::unique_ptr<GrpcExchange>> Create(const Options& options,
                                                              GrpcExchangeServer* server);
  ~GrpcExchange() override;

  // Returns how other workers are reached: "rank 1 over a Unix socket, ranks 2, 3 over TCP".
  std::string DescribeWays() const;

  // OnClosed has the stream's error, with rank and address. If the process there is not of this
  // generation (kFailedPrecondition), the error is marked as a loss that is not this worker's fault
  // (MarkServerLoss).
  void Start(ExchangeEvents* events) override;
  void Open(WorkerRank to, uint64_t attempt) override;
  void Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
            std::shared_ptr<const BlockBytes> bytes) override;
  void SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) override;
  void Close() override;

 private:
  class Stream;
  struct Peer;
  GrpcExchange(GrpcExchangeServer* server, std::vector<std::unique_ptr<Peer>> peers);
  std::shared_ptr<Stream> Find(WorkerRank to, uint64_t attempt);
  void OnStreamDone(const Stream& stream, const absl::Status& status);

  GrpcExchangeServer* const server_;
  const std::vector<std::unique_ptr<Peer>> peers_;  // [num_workers]; null: this rank
  ExchangeEvents* events_ = nullptr;                // Constant after Start.
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // [num_workers]
  int num_streams_ ABSL_GUARDED_BY(mutex_) = 0;  // Streams that are not destroyed yet.
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Streams of server_ have ended, too.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_H_
