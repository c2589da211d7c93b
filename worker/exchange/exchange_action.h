// The actions, waits and counts of an exchange (all_to_all.h).
#ifndef THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_ACTION_H_
#define THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_ACTION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"

namespace thermocline {

// This rank waits for a block of another rank.
struct ExchangeWait {
  WorkerRank about;  // The rank whose block is missing.
  BlockId missing;
  // The block that can't be made without the missing one: that one itself, but for keys, which are
  // needed for a step before theirs. Of all waits of all ranks, the one with the least needed_for
  // is the cause of the others.
  BlockId needed_for;
  int64_t waited_us = 0;
  int64_t silent_us = 0;  // How long nothing has come from that rank.
  absl::Status stream;    // The last error of the stream to it; OK: none since it was open.
};

// What one rank has exchanged with the others so far.
struct ExchangeCounts {
  std::array<uint64_t, kNumPhases> bytes_sent{};      // [phases]
  std::array<uint64_t, kNumPhases> bytes_received{};  // [phases] Bytes that came twice count once.
  std::array<int64_t, kNumPhases> wait_us{};          // [phases] From an Await to the last block.
  std::vector<int64_t> wait_for_rank_us;              // [num_ranks] By the rank that came last.
  uint64_t bytes_sent_again = 0;                      // Part of bytes_sent.
  uint64_t streams_opened = 0;                        // Streams that were answered.
  uint64_t bytes_owed = 0;                            // Posted to other ranks, not acknowledged.
  uint64_t bytes_held = 0;                            // Received and not released.
};

// The actions of an exchange, which its caller carries out in order. A stream that loses one
// breaks.
namespace exchange_action {

// Opens a stream. OnReceipt (it is open) or OnClosed answers.
struct OpenStream {
  WorkerRank to;
  uint64_t attempt = 0;
};
// Sends a chunk. OnSent answers; then the next one may follow.
struct SendChunk {
  WorkerRank to;
  uint64_t attempt = 0;
  BlockChunk chunk;
  std::shared_ptr<const BlockBytes> bytes;  // Owns chunk.data.
};
// Sends a receipt on the stream that `to` has opened. It makes earlier receipts superfluous.
struct SendReceipt {
  WorkerRank to;
  uint64_t attempt = 0;
  Receipt receipt;
};
// Logs that this rank has waited long. The wait goes on.
struct Complain {
  ExchangeWait wait;
};

}  // namespace exchange_action

using ExchangeAction = std::variant<exchange_action::OpenStream, exchange_action::SendChunk,
                                    exchange_action::SendReceipt, exchange_action::Complain>;

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_ACTION_H_
