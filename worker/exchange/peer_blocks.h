// The blocks between one rank and one peer: those on their way to it, and those that have come from
// it. AllToAll has both for each peer.
//
// Each phase has one block a step, and blocks are sent and received in the order of steps. So one
// number a phase says which blocks are here, and one for which blocks there is room (Receipt).
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

// Blocks for a peer, which are kept until it has acknowledged them. Not thread-safe.
class OutgoingBlocks {
 public:
  // `options` must outlive this object. Errors name `to`.
  OutgoingBlocks(const ExchangeOptions& options, WorkerRank to);

  // REQUIRES: the step follows that of the phase's last block.
  void Add(BlockId id, Block block);

  // Takes a receipt. A stream begins with one; from there on all blocks are sent again from their
  // begin. Before it nothing is sent. Errors: kInternal (it acknowledges blocks that were not sent,
  // or says less than one before).
  absl::Status OnReceipt(const Receipt& receipt, bool begins_stream);
  void OnBroken() { is_open_ = false; }

  // Sets *chunk to the next piece to send, of the earliest (step, phase) that the peer takes.
  // Returns false if there is none now. *bytes owns chunk->data.
  bool NextChunk(BlockChunk* chunk, std::shared_ptr<const BlockBytes>* bytes);

  // Drops all blocks, since the peer needs none any more.
  void Clear();

  bool is_open() const { return is_open_; }
  bool is_empty() const;                     // Whether all blocks are acknowledged.
  uint64_t bytes() const { return bytes_; }  // Bytes of blocks that are not acknowledged.
  uint64_t bytes_sent(Phase phase) const;    // Over all streams.
  uint64_t bytes_sent_again() const { return bytes_sent_again_; }

 private:
  struct PhaseQueue {
    std::deque<Block> blocks;        // Blocks that are not acknowledged.
    std::deque<uint32_t> checksums;  // [blocks]
    Step first;                      // The step of blocks.front().
    Step next;                       // The step of the block to be sent next on this stream.
    uint64_t offset = 0;             // How much of that block is sent.
    Step sent = kNoStep;             // The last block that was sent whole on any stream.
    uint64_t sent_of_next = 0;       // How much of the block after `sent` any stream has sent.
    uint64_t bytes_sent = 0;
    Step taken = kNoStep;  // The peer takes blocks through this step.
  };

  void Acknowledge(PhaseQueue* phase, Step received);
  void CountSent(PhaseQueue* phase, uint64_t size);

  const ExchangeOptions& options_;
  const WorkerRank to_;
  std::array<PhaseQueue, kNumPhases> phases_;
  bool is_open_ = false;
  uint64_t bytes_ = 0;
  uint64_t bytes_sent_again_ = 0;
};

// Blocks from one sender. They are put together from chunks, and kept until they are released. Not
// thread-safe.
class IncomingBlocks {
 public:
  // `options` must outlive this object. Errors name `from`.
  IncomingBlocks(const ExchangeOptions& options, WorkerRank from);

  // A new stream begins: blocks of which the stream before has brought only a part are dropped.
  void BeginStream();

  // Takes the next chunk of the stream, and sets *completes to whether its block is whole now. If
  // the block is here already, the chunk is dropped. Errors: kInternal (chunks are missing, come
  // out of order, or are of blocks for which there is no room: names rank, phase and step),
  // kDataLoss (a block's checksum is wrong, or it differs from the same block that came before),
  // kResourceExhausted (a block is too large).
  absl::Status OnChunk(const BlockChunk& chunk, bool* completes);

  // Takes a whole block of this rank itself. REQUIRES: its step follows that of the phase's last.
  void Put(BlockId id, Block block);

  // Returns null if the block is not here, or is released.
  const Block* Find(BlockId id) const;
  // Drops a block. REQUIRES: it is here, and is the first of its phase.
  void Release(BlockId id);

  Receipt receipt() const;
  int held(Phase phase) const;  // How many blocks are here.
  uint64_t bytes() const { return bytes_; }

 private:
  // Remembers a block's content, to compare a repeated one.
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
    std::shared_ptr<BlockBytes> memory;  // The block's bytes, to be used again; null: not ours.
  };
  struct PhaseQueue {
    std::deque<Held> blocks;              // Whole blocks that are not released.
    std::deque<Known> known;              // The last blocks received, the newest last.
    Step first;                           // The step of blocks.front(), or of the next block.
    Step received;                        // The step of the last whole block.
    bool has_ended = false;               // Whether that block was kEnd or kFailed.
    std::shared_ptr<BlockBytes> partial;  // The front of the next block; null: none is here.
    Known partial_is{};
    std::vector<std::shared_ptr<BlockBytes>> idle;  // Memory to be used again.
  };

  absl::Status Error(absl::StatusCode code, BlockId id, absl::string_view what) const;
  absl::Status CheckPlace(const PhaseQueue& phase, const BlockChunk& chunk) const;
  absl::Status CheckRepeated(const PhaseQueue& phase, const BlockChunk& chunk) const;
  Step TakenThrough(size_t phase) const;
  void Keep(PhaseQueue* phase, const Known& known, Held held);

  const ExchangeOptions& options_;
  const WorkerRank from_;
  std::array<PhaseQueue, kNumPhases> phases_;
  uint64_t bytes_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_PEER_BLOCKS_H_
