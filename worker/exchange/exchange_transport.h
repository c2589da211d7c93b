// How chunks and receipts reach other ranks: gRPC in the program (grpc_exchange.h), a queue in one
// process for tests (local_exchange.h). What is sent when is the exchange's (all_to_all.h).
#ifndef THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_
#define THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"

namespace thermocline {

// What comes of streams. They run on any thread, hold up the stream that they are of, and may be
// run from inside a call of the transport only where it can't run them so without end.
class ExchangeEvents {
 public:
  virtual ~ExchangeEvents() = default;

  // Of streams that this rank opens.
  virtual void OnReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) = 0;
  virtual void OnSent(WorkerRank to, uint64_t attempt) = 0;
  virtual void OnClosed(WorkerRank to, uint64_t attempt, const absl::Status& why) = 0;
  // Of streams that others open. A chunk's data are valid until the call returns.
  virtual void OnOpened(WorkerRank from, uint64_t attempt) = 0;
  virtual void OnChunk(WorkerRank from, uint64_t attempt, const BlockChunk& chunk) = 0;
};

// Thread-safe. Calls return at once; those for a stream that is no more do nothing.
class ExchangeTransport {
 public:
  virtual ~ExchangeTransport() = default;

  // Before all other calls. From now on events come.
  virtual void Start(ExchangeEvents* events) = 0;

  // The three actions of block.h. Chunks of a stream arrive in their order, if they do; `bytes`
  // keeps the chunk's data. Receipts of a stream may come in any order, as several threads send
  // them; what the newest says must arrive.
  virtual void Open(WorkerRank to, uint64_t attempt) = 0;
  virtual void Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
                    std::shared_ptr<const BlockBytes> bytes) = 0;
  virtual void SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) = 0;

  // Ends all streams. Returns when no event comes any more: not to be called by one.
  virtual void Close() = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_TRANSPORT_H_
