// What an exchange (all_to_all.h) wants done, waits for and has done so far.
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

// A rank waits for a block of another one.
struct ExchangeWait {
  WorkerRank about;
  BlockId missing;
  // Of all waits of all ranks, the one with the least has its cause in the rank that it is about:
  // the block itself, but for keys, which are needed for a step before theirs.
  BlockId needed_for;
  int64_t waited_us = 0;
  int64_t silent_us = 0;  // Since anything came from that rank.
  absl::Status stream;    // The last error of the stream to it; OK: none since it was open.
};

// What one rank has exchanged with the others so far.
struct ExchangeCounts {
  std::array<uint64_t, kNumPhases> bytes_sent{};      // [phases]
  std::array<uint64_t, kNumPhases> bytes_received{};  // [phases] What came twice counts once.
  std::array<int64_t, kNumPhases> wait_us{};          // [phases] From an Await to the last block.
  std::vector<int64_t> wait_for_rank_us;              // [num_ranks] By whose block was the last.
  uint64_t bytes_sent_again = 0;                      // Part of bytes_sent.
  uint64_t streams_opened = 0;                        // That were answered.
  uint64_t bytes_owed = 0;                            // Posted to others, not acknowledged.
  uint64_t bytes_held = 0;                            // Received and not released.
};

// What an exchange wants done, in order. Whatever is lost on the way is a broken stream.
namespace exchange_action {

// Answers: OnReceipt (it is open), OnClosed.
struct OpenStream {
  WorkerRank to;
  uint64_t attempt = 0;
};
// Answer: OnSent, when another one may follow.
struct SendChunk {
  WorkerRank to;
  uint64_t attempt = 0;
  BlockChunk chunk;
  std::shared_ptr<const BlockBytes> bytes;  // Keeps chunk.data.
};
// On a stream that `to` has opened. A later one makes an earlier one useless.
struct SendReceipt {
  WorkerRank to;
  uint64_t attempt = 0;
  Receipt receipt;
};
// Says that this rank has waited long. Nothing ends by it.
struct Complain {
  ExchangeWait wait;
};

}  // namespace exchange_action

using ExchangeAction = std::variant<exchange_action::OpenStream, exchange_action::SendChunk,
                                    exchange_action::SendReceipt, exchange_action::Complain>;

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_ACTION_H_
