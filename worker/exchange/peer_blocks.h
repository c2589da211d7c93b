// One rank's blocks on their way to one peer, and from it. all_to_all.h puts them together.
//
// Of every phase there is one block a step, and they are sent and received in the order of their
// steps. So what is here, and what there is room for, is one number a phase (Receipt).
#ifndef THERMOCLINE_WORKER_EXCHANGE_PEER_BLOCKS_H_
#define THERMOCLINE_WORKER_EXCHANGE_PEER_BLOCKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"

namespace thermocline {

// Blocks that a peer is owed: kept until it has acknowledged them. Not thread-safe.
class OutgoingBlocks {
 public:
  // `to`: named in errors. `options` outlives it.
  OutgoingBlocks(const ExchangeOptions& options, WorkerRank to);

  // REQUIRES: the step follows that of the block before of the phase.
  void Add(BlockId id, Block block);

  // A stream begins with a receipt: whole blocks are sent again from there on. Without one nothing
  // is sent. Errors: kInternal (it acknowledges what was not sent, or takes back what it said).
  absl::Status OnReceipt(const Receipt& receipt, bool begins_stream);
  void OnBroken() { is_open_ = false; }

  // The next piece to send: of the earliest (step, phase) that the peer takes. False: there is none
  // now. chunk->data is valid as long as *bytes.
  bool NextChunk(BlockChunk* chunk, std::shared_ptr<const BlockBytes>* bytes);

  // Drops all: the peer needs nothing more.
  void Clear();

  bool is_open() const { return is_open_; }
  bool is_empty() const;                     // All is acknowledged.
  uint64_t bytes() const { return bytes_; }  // Not acknowledged.
  uint64_t bytes_sent(Phase phase) const;    // On all streams.
  uint64_t bytes_sent_again() const { return bytes_sent_again_; }

 private:
  struct OfPhase {
    std::deque<Block> blocks;  // Not acknowledged.
    std::deque<uint32_t> checksums;
    Step first;                 // That of blocks.front().
    Step next;                  // To be sent on this stream.
    uint64_t offset = 0;        // In it.
    Step sent = kNoStep;        // The last one sent whole on any stream.
    uint64_t sent_of_next = 0;  // Bytes of the one after, on any stream.
    uint64_t bytes_sent = 0;
    Step taken = kNoStep;  // By the peer.
  };

  void Acknowledge(OfPhase* phase, Step received);
  void CountSent(OfPhase* phase, uint64_t size);

  const ExchangeOptions& options_;
  const WorkerRank to_;
  std::array<OfPhase, kNumPhases> phases_;
  bool is_open_ = false;
  uint64_t bytes_ = 0;
  uint64_t bytes_sent_again_ = 0;
};

// Blocks of one sender: put together from chunks, and kept until they are released. Not
// thread-safe.
class IncomingBlocks {
 public:
  // `from`: named in errors. `options` outlives it.
  IncomingBlocks(const ExchangeOptions& options, WorkerRank from);

  // A stream begins: what had come of a block on the one before is dropped.
  void BeginStream();

  // Takes the next chunk of the stream. *completes: its block is whole now. A block that is here
  // already is dropped: the first counts. Errors: kInternal (chunks are missing, come out of order
  // or beyond what was taken: names rank, phase and step), kDataLoss (a block's checksum is wrong,
  // or it differs from the one that came before), kResourceExhausted (a block is too large).
  absl::Status OnChunk(const BlockChunk& chunk, bool* completes);

  // Takes a whole block, of this very rank. REQUIRES: it follows the one before.
  void Put(BlockId id, Block block);

  // Null: it is not here, or is released.
  const Block* Find(BlockId id) const;
  // The block is needed no more. REQUIRES: it is here, and is the first of its phase.
  void Release(BlockId id);

  Receipt receipt() const;
  int held(Phase phase) const;  // Blocks here.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Known {
    BlockKind kind;
    uint32_t checksum;
    uint64_t bytes;
    friend bool operator==(const Known& a, const Known& b) {
      return a.kind == b.kind && a.checksum == b.checksum && a.bytes == b.bytes;
    }
  };
  struct Held {
    Block block;
    std::shared_ptr<BlockBytes> memory;  // Of the block, to be used again; null: not ours.
  };
  struct OfPhase {
    std::deque<Held> blocks;              // Whole, not released.
    std::deque<Known> known;              // Of the last ones received, the newest last.
    Step first;                           // That of blocks.front(), or the next one.
    Step received;                        // The last whole one.
    bool has_ended = false;               // It was END or FAILED.
    std::shared_ptr<BlockBytes> partial;  // Of the one after; null: nothing of it is here.
    Known partial_is{};
    std::vector<std::shared_ptr<BlockBytes>> idle;
  };

  absl::Status Error(absl::StatusCode code, BlockId id, absl::string_view what) const;
  absl::Status CheckPlace(const OfPhase& phase, const BlockChunk& chunk) const;
  absl::Status CheckRepeated(const OfPhase& phase, const BlockChunk& chunk) const;
  Step TakenThrough(size_t phase) const;
  void Keep(OfPhase* phase, const Known& known, Held held);

  const ExchangeOptions& options_;
  const WorkerRank from_;
  std::array<OfPhase, kNumPhases> phases_;
  uint64_t bytes_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_PEER_BLOCKS_H_
