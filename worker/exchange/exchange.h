// A rank's end of the exchange between the workers of a job: blocks go out with Post, and those of
// all ranks come in with Receive, which waits for them.
//
// AllToAll (all_to_all.h) under a mutex, with streams and a timer. What it wants done is done after
// the mutex is released. A failure is for good: every wait ends with it.
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
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "proto/parameter_server.pb.h"
#include "worker/exchange/block.h"
#include "worker/exchange/exchange_action.h"
#include "worker/exchange/exchange_transport.h"

namespace thermocline {

// Each may be null. They run on any thread, without the exchange's mutex, and none when it is
// destroyed; they may call it, but not wait.
struct ExchangeHooks {
  // Runs once, when the exchange fails.
  std::function<void(const absl::Status& failure)> on_failure;
  // Runs about once a second while a rank waits for a block.
  std::function<void()> on_waiting;
  // Gets a line for the log when a block has been waited for long, and again whenever the wait has
  // doubled.
  std::function<void(const std::string& line)> on_notice;
};

// Blocks of all ranks of one phase and step. Movable; releases them when it is destroyed, in its
// phase in the order of steps.
class ReceivedBlocks {
 public:
  ReceivedBlocks() = default;  // Of no ranks.
  ReceivedBlocks(ReceivedBlocks&& other) noexcept { *this = std::move(other); }
  ReceivedBlocks& operator=(ReceivedBlocks&& other) noexcept;
  ~ReceivedBlocks() { Release(); }

  // By rank, the own one included. [num_ranks]
  absl::Span<const uint8_t> from(WorkerRank rank) const { return *bytes_[rank.value()]; }
  size_t size() const { return bytes_.size(); }
  // Does what the destructor does, earlier.
  void Release();

 private:
  friend class Exchange;
  std::vector<std::shared_ptr<const BlockBytes>> bytes_;
  std::function<void()> release_;
};

// Thread-safe.
class Exchange {
 public:
  // Opens streams to the other ranks at once. `scheduler` outlives the exchange.
  Exchange(const ExchangeOptions& options, ExchangeHooks hooks,
           std::unique_ptr<ExchangeTransport> transport, Scheduler* scheduler);
  // Stops, and closes the transport. REQUIRES: no call is under way; all received is released.
  ~Exchange();

  WorkerRank rank() const;
  uint32_t num_ranks() const;
  const ExchangeOptions& options() const;

  // Hands over this rank's blocks for all ranks, [num_ranks]; its own comes back at its rank. In
  // every phase of the job each step once, in order. Blocks may share their bytes. Never waits.
  // Errors: kResourceExhausted (a block is larger than others take); as status().
  absl::Status Post(BlockId id, std::vector<Block> to_ranks);
  // In phase kKeys, as the last one: this rank has no data from `step` on; they end (`why` is OK),
  // or can't be read.
  absl::Status PostEnd(Step step, const absl::Status& why);

  // Waits until every rank's block is here. In every phase each step once, in order. Errors: as
  // status(); kInternal (this rank owes something that others may need before: wait_order.h).
  absl::StatusOr<ReceivedBlocks> Receive(BlockId id);
  // Waits for all ranks' keys of the step. False: the data end before it. Releases nothing: Receive
  // follows where the step exists. Errors: kFailedPrecondition (a rank can't read its data from
  // this step on; names it; that rank ends the job, with its own error), kInvalidArgument (some
  // ranks' data end here, others' do not: names both): steps before are trained, the exchange goes
  // on. As status().
  absl::StatusOr<bool> HasStep(Step step);
  // Begins the wait of Receive, and says whether it is over: for a caller that can't wait in a
  // thread. It asks again when something has come. Not over where the exchange has failed.
  bool BeginWait(BlockId id);

  // The rest of the order of waits. All of this rank's push of the step is with the session; steps
  // come in order.
  void NotePushed(Step step);
  // Before the training thread waits for anything else that other ranks have a part in: a planned
  // batch, or rows from servers. Errors: as status(); kInternal (names what this rank owes).
  absl::Status CheckOwesNothing();

  // All waits end with kCancelled, now and later. What has been posted still reaches the others.
  void Stop();
  // Fails the exchange from outside, if it hasn't failed. REQUIRES: !why.ok()
  void Fail(const absl::Status& why);
  // kCancelled after Stop; the failure. OK while it works.
  absl::Status status() const;

  // Waits until this rank is needed no more, then closes the transport: all that it has posted has
  // been acknowledged; or every rank's push of the last step is applied, which `ask_applied` asks a
  // server (PsSession::AwaitApplied), since the last acknowledgements may be lost with their rank.
  // The latter says that every rank has all blocks only if a rank's push of the last step isn't
  // whole before it has received them. Errors: those of `ask_applied`; the failure.
  // REQUIRES: this rank has received all blocks of the last step, and its push is acknowledged.
  using Done = std::function<void(absl::Status)>;
  absl::Status Leave(const std::function<void(Done done)>& ask_applied);

  // What is waited for now; what is needed first stands first.
  std::vector<ExchangeWait> waits() const;
  void FillStats(ExchangeStats* stats) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// "has waited 21.3 s for the rows of step 7 from rank 2; ...": for logs.
std::string Describe(const ExchangeWait& wait);
// For WorkerStats.
void FillWait(const ExchangeWait& wait, WorkerWait* to);

// Packed values as a block.
template <typename T>
Block MakeBlock(absl::Span<const T> values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {BlockKind::kData, std::make_shared<BlockBytes>(bytes, bytes + values.size() * sizeof(T))};
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_EXCHANGE_H_
