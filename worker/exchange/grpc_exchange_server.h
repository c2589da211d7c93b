// What other workers call on this one, for the exchange between them: their streams of blocks
// (ExchangeTransport's receiving side), and where all of them listen, which the controller says.
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

// A worker's process, as the others know it.
struct ExchangeIdentity {
  std::string job_id;
  uint64_t generation = 0;
  WorkerRank rank;
  uint32_t num_workers = 1;
  uint64_t life = 0;  // Of the process; 0: GrpcExchangeServer draws one.
};

// Thread-safe. It serves from the start of its process: streams that come before the exchange has
// begun, or when it is over, are refused with UNAVAILABLE and come again.
class GrpcExchangeServer {
 public:
  explicit GrpcExchangeServer(ExchangeIdentity identity);
  // REQUIRES: the gRPC server has shut down.
  ~GrpcExchangeServer();
  const ExchangeIdentity& identity() const { return identity_; }

  // ---- The handlers of service Worker.

  // Errors: kFailedPrecondition (another job, generation or number of workers; other addresses than
  // before). The same again is OK.
  absl::Status Introduce(const WorkerPeers& peers);
  // A stream's errors: FAILED_PRECONDITION (of another job, generation, number of workers or
  // protocol version; for another rank; of another process than before: names both), ABORTED (a
  // later attempt has come), UNAVAILABLE, INVALID_ARGUMENT (malformed).
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  Reactor* Exchange(grpc::CallbackServerContext* context);

  // ---- This worker's side.

  // Waits until the controller has said where all workers listen. [num_workers] host:port, by rank.
  // Errors: kDeadlineExceeded; kCancelled after StopWaiting.
  absl::StatusOr<std::vector<std::string>> AwaitIntroduction(absl::Duration timeout);
  void StopWaiting();

  // From now on streams are taken.
  void Begin(ExchangeEvents* events);
  void SendReceipt(WorkerRank from, uint64_t attempt, const Receipt& receipt);
  // Ends all streams. Returns when no event comes any more.
  void End();

 private:
  class Stream;
  struct Peer {
    uint64_t life = 0;     // 0: not known yet.
    uint64_t attempt = 0;  // The highest.
    std::shared_ptr<Stream> stream;
  };

  absl::Status CheckHello(const ExchangeHello& hello) const;
  absl::Status TakeHello(const std::shared_ptr<Stream>& stream, const ExchangeHello& hello);
  absl::Status TakeChunk(const Stream& stream, const grpc::ByteBuffer& bytes);
  void Forget(const Stream* stream);
  // An event begins: null where there are to be none.
  ExchangeEvents* Enter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave();

  const ExchangeIdentity identity_;
  absl::Mutex mutex_;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);  // Empty: not introduced.
  bool is_waiting_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ExchangeEvents* events_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;          // Events.
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // [num_workers]
  int num_streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_GRPC_EXCHANGE_SERVER_H_
