// One rank's half of the exchange between the workers of a job, as a state machine: in every phase
// of a step each rank has a block for each rank. It has no thread, clock, socket or file.
//
// Each rank has a stream to each other rank; chunks go one way, receipts the other. The sender
// opens it, and numbers its attempts. The receiver answers with a receipt, after which the sender
// sends all blocks from there on, the earliest (step, phase) first. When a stream breaks, the
// sender opens another.
//
// A rank that waits for a block never holds up blocks that other ranks wait for: it sends a receipt
// before the sender is out of credit, and always has room for the blocks that its receipts take. So
// ranks never wait for each other in a circle, as long as each posts its blocks of an earlier
// (step, phase) before it waits for a later one, and releases blocks that it has used. wait_order.h
// checks that.
#ifndef THERMOCLINE_WORKER_EXCHANGE_ALL_TO_ALL_H_
#define THERMOCLINE_WORKER_EXCHANGE_ALL_TO_ALL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"
#include "worker/exchange/exchange_action.h"
#include "worker/exchange/peer_blocks.h"
#include "worker/exchange/wait_order.h"

namespace thermocline {

// Not thread-safe. Times never go back. After every call the caller carries out TakeActions(). A
// failure is for good: a rank breaks these rules, or ranks' data differ.
class AllToAll {
 public:
  AllToAll(const ExchangeOptions& options, int64_t now_us);
  AllToAll(const AllToAll&) = delete;
  AllToAll& operator=(const AllToAll&) = delete;

  // Takes this rank's blocks for all ranks. [num_ranks] The block for this rank itself comes back
  // with those of other ranks. Each step is posted once in every phase, in order. Errors:
  // kResourceExhausted (a block is larger than other ranks take), failure().
  absl::Status Post(BlockId id, std::vector<Block> to_ranks);

  // Whether every rank's block is here. The first call begins a wait, which ends when they are. If
  // the wait breaks the order of waits, the exchange fails.
  bool Await(int64_t now_us, BlockId id);
  bool IsComplete(BlockId id) const;
  bool is_waiting() const { return !waits_.empty(); }
  // The blocks that this rank waits for now, those that are needed first at the front.
  std::vector<ExchangeWait> waits(int64_t now_us) const;
  // [num_ranks] The blocks, by rank; valid until they are released. REQUIRES: IsComplete(id)
  std::vector<const Block*> BlocksOf(BlockId id) const;
  // Drops the blocks. REQUIRES: IsComplete(id); those of the step before are released.
  void Release(BlockId id);
  // The parts of the order of waits that are not about blocks (wait_order.h). If the order is
  // broken, the exchange fails.
  void NotePushed(Step step) { order_.NotePushed(step); }
  void CheckOwesNothing();

  // Returns whether there is such a step, as all ranks' keys of it say; false: the data end before
  // it. After an error the steps before are trained all the same. Errors:
  //   kFailedPrecondition (a rank can't read its data from this step on: the first such rank's
  //     error; that rank ends the job itself)
  //   kInvalidArgument (some ranks' data end here, others' do not: names both)
  // REQUIRES: the keys of all ranks are here.
  absl::StatusOr<bool> HasStep(Step step) const;

  // Events of streams that this rank opens. Those of attempts before the last are ignored. A stream
  // that is closed is opened again; but if it was refused with kFailedPrecondition (another
  // generation), the exchange fails.
  void OnReceipt(int64_t now_us, WorkerRank to, uint64_t attempt, const Receipt& receipt);
  void OnSent(WorkerRank to, uint64_t attempt);
  void OnClosed(int64_t now_us, WorkerRank to, uint64_t attempt, const absl::Status& why);
  // Events of streams that other ranks open. Of each rank only the highest attempt counts.
  void OnOpened(int64_t now_us, WorkerRank from, uint64_t attempt);
  void OnChunk(int64_t now_us, WorkerRank from, uint64_t attempt, const BlockChunk& chunk);

  void OnTick(int64_t now_us);
  int64_t next_tick_us() const;  // When to call OnTick; INT64_MAX: never.
  std::vector<ExchangeAction> TakeActions();

  // Tells the machine that every rank has all the blocks that it needs, as a server has applied the
  // last step, to which every rank's push belongs. (So no rank may finish its push of that step
  // before it has received all blocks of the step.) No stream is opened from now on.
  void Finish();
  // Whether no rank needs anything more from this one: all that it has posted is acknowledged, or
  // Finish was called.
  bool MayLeave() const;

  void Fail(const absl::Status& why);
  const absl::Status& failure() const { return failure_; }
  ExchangeCounts counts() const;
  int held(WorkerRank from, Phase phase) const { return incoming_[from.value()].held(phase); }

 private:
  struct ToPeer {
    uint64_t attempt = 0;
    bool is_opening = false;  // The stream is open or being opened.
    bool is_sending = false;  // A chunk is on its way.
    int failures = 0;         // How often in a row the stream has broken.
    absl::Status error;
  };
  struct FromPeer {
    uint64_t attempt = 0;                  // 0: the peer has opened no stream yet.
    std::optional<int64_t> receipt_by_us;  // When to send a receipt at the latest; nullopt: none.
    Receipt last_receipt;                  // The last receipt that was sent.
    int64_t last_event_us = 0;             // When the last event came from the peer.
  };
  struct Wait {
    int64_t since_us = 0;
    int64_t complain_at_us = 0;
    uint32_t last = 0;  // The rank whose block came last.
  };

  using Due = std::set<std::pair<int64_t, uint32_t>>;  // Pairs of time and rank.

  bool IsPeer(uint32_t rank) const { return rank != options_.rank.value(); }
  void OpenDue(int64_t now_us);
  void SendNext(uint32_t to);
  void NoteCame(int64_t now_us, uint32_t from, BlockId id);
  void OweReceipt(uint32_t from);
  void OweReceipt(uint32_t from, int64_t by_us);
  void QueueReceipt(uint32_t rank, const Receipt& receipt);
  bool NeedsReceipt(const FromPeer& from, const Receipt& receipt) const;
  std::map<BlockId, Wait>::iterator EndWait(int64_t now_us, std::map<BlockId, Wait>::iterator wait);
  // Returns a wait for each rank whose block is not here.
  std::vector<ExchangeWait> Missing(int64_t now_us, BlockId id, const Wait& wait) const;

  const ExchangeOptions options_;
  WaitOrder order_;
  std::vector<OutgoingBlocks> outgoing_;  // [num_ranks] This rank's own entry stays empty.
  std::vector<IncomingBlocks> incoming_;  // [num_ranks]
  std::vector<ToPeer> to_;                // [num_ranks]
  std::vector<FromPeer> from_;            // [num_ranks]
  // With these an event costs the same however many ranks there are.
  Due to_open_;                       // Ranks without a stream, by when to open it.
  Due receipts_;                      // Ranks that are owed a receipt, by receipt_by_us.
  std::vector<uint32_t> changed_;     // Ranks whose receipt has changed since TakeActions.
  std::map<BlockId, uint32_t> here_;  // How many ranks' blocks are here and not released.
  uint32_t ranks_owed_ = 0;           // How many ranks have not acknowledged all of their blocks.
  std::map<BlockId, Wait> waits_;
  int64_t now_us_;  // The time of the last call.
  std::vector<ExchangeAction> actions_;
  bool is_finished_ = false;
  absl::Status failure_;
  ExchangeCounts counts_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_ALL_TO_ALL_H_
