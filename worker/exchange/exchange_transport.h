// Carries chunks and receipts to other ranks: by gRPC in the program (grpc_exchange.h), by a queue
// in one process for tests (testing/local_exchange.h). The exchange decides what is sent when
// (all_to_all.h).
#ifndef THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_
#define THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"

namespace thermocline {

// The events of streams. They run on any thread, and hold up their stream until they return. A
// transport may run them inside a call of its own only if that can't go on without end.
class ExchangeEvents {
 public:
  virtual ~ExchangeEvents() = default;

  // Events of streams that this rank opens.
  virtual void OnReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) = 0;
  virtual void OnSent(WorkerRank to, uint64_t attempt) = 0;
  virtual void OnClosed(WorkerRank to, uint64_t attempt, const absl::Status& why) = 0;
  // Events of streams that other ranks open. A chunk's data are valid until the call returns.
  virtual void OnOpened(WorkerRank from, uint64_t attempt) = 0;
  virtual void OnChunk(WorkerRank from, uint64_t attempt, const BlockChunk& chunk) = 0;
};

// Thread-safe. Calls return at once. Calls for a stream that is closed do nothing.
class ExchangeTransport {
 public:
  virtual ~ExchangeTransport() = default;

  // Called before all other calls. From now on events come.
  virtual void Start(ExchangeEvents* events) = 0;

  // These carry out the actions of exchange_action.h. Chunks of a stream arrive in their order, if
  // they do; `bytes` owns the chunk's data. Several threads may send receipts of a stream, so they
  // may arrive in any order; but the content of the newest must arrive.
  virtual void Open(WorkerRank to, uint64_t attempt) = 0;
  virtual void Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
                    std::shared_ptr<const BlockBytes> bytes) = 0;
  virtual void SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) = 0;

  // Ends all streams. Returns when no event comes any more. REQUIRES: not called by an event
  virtual void Close() = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_
