// One rank's part of the exchange between the workers of a job: Post sends this rank's blocks, and
// Receive waits for those of all ranks.
//
// It runs AllToAll (all_to_all.h) under a mutex, with streams and a timer, and carries out its
// actions after the mutex is released. A failure is for good: every wait ends with it.
#ifndef THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_H_
#define THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "proto/parameter_server.pb.h"
#include "worker/exchange/block.h"
#include "worker/exchange/exchange_action.h"
#include "worker/exchange/exchange_transport.h"

namespace thermocline {

// Callbacks, each of which may be null. They run on any thread, without the exchange's mutex, and
// not any more once the exchange is destroyed. They may call the exchange, but must not wait.
struct ExchangeHooks {
  // Runs once, when the exchange fails.
  std::function<void(const absl::Status& failure)> on_failure;
  // Runs about once a second while a rank waits for a block.
  std::function<void()> on_waiting;
  // Gets a line for the log when a block has been waited for long, and again whenever the wait has
  // doubled.
  std::function<void(const std::string& line)> on_notice;
};

// The blocks of all ranks in one phase of one step. Movable. The destructor releases them; the
// blocks of a phase have to be released in the order of steps.
class ReceivedBlocks {
 public:
  ReceivedBlocks() = default;  // No blocks.
  ReceivedBlocks(ReceivedBlocks&& other) noexcept { *this = std::move(other); }
  ReceivedBlocks& operator=(ReceivedBlocks&& other) noexcept;
  ~ReceivedBlocks() { Release(); }

  // The block of one rank, which may be this one.
  absl::Span<const uint8_t> from(WorkerRank rank) const { return *bytes_[rank.value()]; }
  size_t size() const { return bytes_.size(); }
  // Releases the blocks before the destructor does.
  void Release();

 private:
  friend class Exchange;
  std::vector<std::shared_ptr<const BlockBytes>> bytes_;  // [num_ranks]
  std::function<void()> release_;
};

// Thread-safe.
class Exchange {
 public:
  // Opens streams to the other ranks at once. `scheduler` must outlive the exchange.
  Exchange(const ExchangeOptions& options, ExchangeHooks hooks,
           std::unique_ptr<ExchangeTransport> transport, Scheduler* scheduler);
  // Stops, and closes the transport. REQUIRES: no call is under way; all ReceivedBlocks are
  // released.
  ~Exchange();

  WorkerRank rank() const;
  uint32_t num_ranks() const;
  const ExchangeOptions& options() const;

  // Posts this rank's blocks for all ranks. [num_ranks] The block for this rank itself comes back
  // with those of other ranks. Each step is posted once in every phase, in order. Blocks may share
  // their bytes. Never waits. Errors: kResourceExhausted (a block is larger than other ranks take),
  // status().
  absl::Status Post(BlockId id, std::vector<Block> to_ranks);
  // Posts the last block of phase kKeys: this rank has no data from `step` on. They end (`why` is
  // OK), or can't be read. Errors: Post's.
  absl::Status PostEnd(Step step, const absl::Status& why);

  // Waits until every rank's block is here, and returns them. Each step is received once in every
  // phase, in order. Errors: status(); kInternal (this rank has not posted blocks that other ranks
  // may need first: wait_order.h).
  absl::StatusOr<ReceivedBlocks> Receive(BlockId id);
  // Waits as Receive does, which then returns at once. Errors: Receive's.
  absl::Status Await(BlockId id);
  // Waits for all ranks' keys of the step. Returns whether there is such a step; false: the data
  // end before it. It releases no keys: if the step exists, call Receive. After the first two
  // errors the steps before are trained all the same, and the exchange goes on. Errors:
  //   kFailedPrecondition (a rank can't read its data from this step on: names it; that rank ends
  //     the job, with its own error)
  //   kInvalidArgument (some ranks' data end here, others' do not: names both)
  //   status()
  absl::StatusOr<bool> HasStep(Step step);
  // Begins the wait of Receive, and returns whether it is over (never once the exchange has
  // failed). It serves a caller that can't block its thread, and asks again after each event.
  bool BeginWait(BlockId id);

  // These two are the rest of the order of waits (wait_order.h).
  //
  // Call it when all of this rank's push of the step is with the session; steps come in order.
  void NotePushed(Step step);
  // Call it before the training thread waits for anything else in which other ranks have a part: a
  // planned batch, or rows from servers. Errors: status(); kInternal (names the blocks or the push
  // that this rank owes).
  absl::Status CheckOwesNothing();

  // Ends all waits with kCancelled, now and later. Blocks that were posted still reach other ranks.
  void Stop();
  // Fails the exchange from outside, if it hasn't failed. REQUIRES: !why.ok()
  void Fail(const absl::Status& why);
  // OK while the exchange works; the failure, or kCancelled after Stop.
  absl::Status status() const;

  // Waits until all blocks that were posted are acknowledged, for `patience` at the most; for a
  // rank that ends with an error, and has trained the steps before it. Returns at once where the
  // exchange has failed.
  void Flush(absl::Duration patience);

  // Waits until no rank needs this one any more, then closes the transport. Either all blocks that
  // it has posted are acknowledged; or a server has applied every rank's push of the last step,
  // which `ask_applied` asks (PsSession::AwaitApplied), since a rank that ends may take its last
  // acknowledgements along. For the second to be right, no rank may finish its push of the last
  // step before it has received all blocks of that step. Errors: those of `ask_applied`; the
  // failure. REQUIRES: this rank has received all blocks of the last step, and its push is
  // acknowledged.
  using Done = std::function<void(absl::Status)>;
  absl::Status Leave(const std::function<void(Done done)>& ask_applied);

  // The blocks that this rank waits for now, those that are needed first at the front.
  std::vector<ExchangeWait> waits() const;
  void FillStats(ExchangeStats* stats) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Returns a text for logs: "has waited 21.3 s for the rows of step 7 from rank 2; ...".
std::string Describe(const ExchangeWait& wait);
// Fills an entry of WorkerStats.waits.
void FillWait(const ExchangeWait& wait, WorkerWait* to);

// Makes a block of packed values.
template <typename T>
Block MakeBlock(absl::Span<const T> values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {BlockKind::kData, std::make_shared<BlockBytes>(bytes, bytes + values.size() * sizeof(T))};
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_H_
