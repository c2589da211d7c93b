// ExchangeTransport over gRPC: a bidirectional stream for each ordered pair of ranks, opened by the
// one whose blocks it carries, over a connection of its own: a Unix socket where the other worker
// can be reached over one (local_socket.h), else TCP. The streams that others open come through
// GrpcExchangeServer.
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
    TlsFiles tls;                        // Of connections over TCP.
    int max_message_bytes = kDefaultMaxMessageBytes;
    // A peer without a sign of life for twice as long is gone: its connection may never say so.
    int keepalive_ms = 10'000;
    std::string socket_folder;  // Of the workers' Unix sockets; "": none is used.
  };

  // As the process that `server` serves for, until Close. Connects with the first streams.
  // Errors: those of MakeChannelCredentials; kInvalidArgument (another number of addresses).
  static absl::StatusOr<std::unique_ptr<GrpcExchange>> Create(const Options& options,
                                                              GrpcExchangeServer* server);
  ~GrpcExchange() override;

  // How the others are reached: "rank 1 over a Unix socket, ranks 2, 3 over TCP".
  std::string DescribeWays() const;

  // OnClosed has the stream's error, with rank and address; where the process there is not of this
  // generation (kFailedPrecondition), it is marked as a loss that is not this worker's fault
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
  int num_streams_ ABSL_GUARDED_BY(mutex_) = 0;  // Those that aren't done yet.
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;  // What comes through the server, too.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_H_
