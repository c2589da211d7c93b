// The exchange between the workers of a job, as one of them sees it: in every phase of a step each
// rank has a block for each rank. Pure: no thread, clock, socket or file.
//
// One stream leads from each rank to each other one: chunks go one way, receipts the other. The
// sender opens it, and numbers its attempts; the receiver answers with a receipt, behind which
// whole blocks are sent, the earliest (step, phase) first. When a stream breaks, another is opened.
//
// Who waits for a block never holds up what others wait for: a receipt goes out before its sender
// is out of credit, and blocks that a receipt says are taken always have room. So no ranks wait for
// each other in a circle, as long as each posts what it owes for an earlier (step, phase) before it
// waits for a later one, and releases what it has used: wait_order.h checks that.
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

// Not thread-safe. Times never go back. Every call may want actions. A failure is for good: it says
// that a rank breaks these rules, or that its data differ.
class AllToAll {
 public:
  AllToAll(const ExchangeOptions& options, int64_t now_us);
  AllToAll(const AllToAll&) = delete;
  AllToAll& operator=(const AllToAll&) = delete;

  // Hands over this rank's blocks for all ranks, [num_ranks]; its own comes back at its rank. In
  // every phase of the job each step once, in order. Errors: kResourceExhausted (a block is larger
  // than others take), the failure.
  absl::Status Post(BlockId id, std::vector<Block> to_ranks);

  // Whether every rank's block is here. Waiting for one begins with the first call, and ends when
  // it is. A wait that breaks the order of waits is a failure.
  bool Await(int64_t now_us, BlockId id);
  bool IsComplete(BlockId id) const;
  bool is_waiting() const { return !waits_.empty(); }
  // What is waited for now, what is needed first before the rest.
  std::vector<ExchangeWait> waits(int64_t now_us) const;
  // [num_ranks], in rank order, until they are released. REQUIRES: they are all here.
  std::vector<const Block*> BlocksOf(BlockId id) const;
  // Says that the blocks are used. REQUIRES: they are here, those of the step before are released.
  void Release(BlockId id);
  // The parts of the order of waits that are not about blocks: wait_order.h. A violation is a
  // failure.
  void NotePushed(Step step) { order_.NotePushed(step); }
  void CheckOwesNothing();

  // What all ranks' keys of a step say together: true: there is such a step. False: the data end
  // before it. Errors: the first rank's that can't read its data from this step on
  // (kFailedPrecondition; that rank ends the job itself, with its own error);
  // kInvalidArgument (some ranks' data end here, others' do not: names both). Steps before are
  // trained. REQUIRES: they are all here.
  absl::StatusOr<bool> HasStep(Step step) const;

  // Streams that this rank opens. Answers of attempts before the last are void. A stream that is
  // closed is opened again, unless it is for another generation (kFailedPrecondition): a failure.
  void OnReceipt(int64_t now_us, WorkerRank to, uint64_t attempt, const Receipt& receipt);
  void OnSent(WorkerRank to, uint64_t attempt);
  void OnClosed(int64_t now_us, WorkerRank to, uint64_t attempt, const absl::Status& why);
  // Streams that others open: of a rank the highest attempt counts.
  void OnOpened(int64_t now_us, WorkerRank from, uint64_t attempt);
  void OnChunk(int64_t now_us, WorkerRank from, uint64_t attempt, const BlockChunk& chunk);

  void OnTick(int64_t now_us);
  int64_t next_tick_us() const;  // INT64_MAX: never.
  std::vector<ExchangeAction> TakeActions();

  // Every rank has what it needs: a server has applied the last step, to which every rank's push
  // belongs. So no rank's push of that step may be whole before the rank has received all of it.
  // No stream is opened from now on.
  void Finish();
  // All that this rank has posted has arrived. (After Finish: is needed no more.)
  bool MayLeave() const;

  void Fail(const absl::Status& why);
  const absl::Status& failure() const { return failure_; }
  ExchangeCounts counts() const;
  int held(WorkerRank from, Phase phase) const { return incoming_[from.value()].held(phase); }

 private:
  struct ToPeer {
    uint64_t attempt = 0;
    bool is_opening = false;  // Or open.
    bool is_sending = false;  // A chunk is on its way.
    int failures = 0;         // In a row.
    absl::Status error;
  };
  struct FromPeer {
    uint64_t attempt = 0;                  // 0: none yet.
    std::optional<int64_t> receipt_by_us;  // While it is owed.
    Receipt said;                          // The last one.
    int64_t heard_us = 0;
  };
  struct Wait {
    int64_t since_us = 0;
    int64_t complain_at_us = 0;
    uint32_t last = 0;  // The rank whose block came last.
  };

  using Due = std::set<std::pair<int64_t, uint32_t>>;  // Time, rank.

  bool IsPeer(uint32_t rank) const { return rank != options_.rank.value(); }
  void OpenDue(int64_t now_us);
  void SendNext(uint32_t to);
  void NoteCame(int64_t now_us, uint32_t from, BlockId id);
  void OweReceipt(uint32_t from);
  void OweReceipt(uint32_t from, int64_t by_us);
  void SayReceipt(uint32_t rank, const Receipt& receipt);
  bool NeedsReceipt(const FromPeer& from, const Receipt& receipt) const;
  std::map<BlockId, Wait>::iterator EndWait(int64_t now_us, std::map<BlockId, Wait>::iterator wait);
  // Of each rank that it is waited for.
  std::vector<ExchangeWait> Missing(int64_t now_us, BlockId id, const Wait& wait) const;

  const ExchangeOptions options_;
  WaitOrder order_;
  std::vector<OutgoingBlocks> outgoing_;  // [num_ranks] Nothing in this rank's own.
  std::vector<IncomingBlocks> incoming_;  // [num_ranks]
  std::vector<ToPeer> to_;                // [num_ranks]
  std::vector<FromPeer> from_;            // [num_ranks]
  // So that an event costs the same however many ranks there are:
  Due to_open_;                       // Ranks to which there is no stream.
  Due receipts_;                      // That are owed, by receipt_by_us.
  std::vector<uint32_t> changed_;     // Ranks whose receipt has changed since TakeActions.
  std::map<BlockId, uint32_t> here_;  // Ranks whose block is here, until it is released.
  uint32_t ranks_owed_ = 0;           // Ranks that have not acknowledged all of their blocks.
  std::map<BlockId, Wait> waits_;
  int64_t now_us_;  // As the last call said.
  std::vector<ExchangeAction> actions_;
  bool is_finished_ = false;
  absl::Status failure_;
  ExchangeCounts counts_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_ALL_TO_ALL_H_
