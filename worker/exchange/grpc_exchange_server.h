// The calls that a worker serves for the exchange between workers: the streams of blocks that other
// workers open (ExchangeTransport's receiving side), and Introduce, with which the controller says
// where all workers listen.
#ifndef THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_SERVER_H_
#define THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_SERVER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/parameter_server.pb.h"
#include "worker/exchange/block.h"
#include "worker/exchange/exchange_transport.h"

namespace thermocline {

// Identifies a worker's process to other workers.
struct ExchangeIdentity {
  std::string job_id;
  uint64_t generation = 0;
  WorkerRank rank;
  uint32_t num_workers = 1;
  uint64_t life = 0;  // A random number of the process; 0: GrpcExchangeServer draws one.
};

// Thread-safe. It serves from the start of its process. It refuses streams that come before the
// exchange has begun, or after its end, with UNAVAILABLE; their senders open them again.
class GrpcExchangeServer {
 public:
  explicit GrpcExchangeServer(ExchangeIdentity identity);
  // REQUIRES: the gRPC server has shut down.
  ~GrpcExchangeServer();
  const ExchangeIdentity& identity() const { return identity_; }

  // ---- The handlers of service Worker.

  // Takes the addresses of all workers. The same ones may come again. Errors: kFailedPrecondition
  // (another job, generation or number of workers; other addresses than before).
  absl::Status Introduce(const WorkerPeers& peers);
  // Serves a stream. It ends with FAILED_PRECONDITION (the sender has another job, generation,
  // number of workers or protocol version; it means another rank; it is not the process that sent
  // before: names both), ABORTED (a later attempt has come), UNAVAILABLE, or INVALID_ARGUMENT
  // (malformed).
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  Reactor* Exchange(grpc::CallbackServerContext* context);

  // ---- This worker's side.

  // Waits for Introduce. Returns where all workers listen: [num_workers] host:port, by rank.
  // Errors: kDeadlineExceeded.
  absl::StatusOr<std::vector<std::string>> AwaitIntroduction(absl::Duration timeout);

  // Takes streams from now on. `events` must live until End() has returned.
  void Begin(ExchangeEvents* events);
  void SendReceipt(WorkerRank from, uint64_t attempt, const Receipt& receipt);
  // Ends all streams. Returns when no event comes any more.
  void End();

 private:
  class Stream;
  struct Peer {
    uint64_t life = 0;     // 0: not known yet.
    uint64_t attempt = 0;  // The highest that has come.
    std::shared_ptr<Stream> stream;
  };

  absl::Status CheckHello(const ExchangeHello& hello) const;
  absl::Status TakeHello(const std::shared_ptr<Stream>& stream, const ExchangeHello& hello);
  absl::Status TakeChunk(const Stream& stream, const grpc::ByteBuffer& bytes);
  void Forget(const Stream* stream);
  // Begins an event, which Leave() ends. Returns null if no event may run.
  ExchangeEvents* Enter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave();

  const ExchangeIdentity identity_;
  absl::Mutex mutex_;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);  // Empty before Introduce.
  ExchangeEvents* events_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;          // How many events are running.
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // [num_workers]
  int num_streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_SERVER_H_
