// One parameter server without gRPC: generation, ledger, acceptance, apply, held pulls
// (docs/architecture.md).
//
// A state machine: what it holds is a function of its configuration and the pushes it accepted, in
// order; a journal holds those where the job wants it. Time comes from a Scheduler and answers
// leave through callbacks, so the simulation runs many of them in one thread. Thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_SERVER_CORE_H_
#define THERMOCLINE_SERVER_CORE_SERVER_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/wire/messages.h"
#include "server/checkpoint/shard_writer.h"
#include "server/core/server_config.h"
#include "server/core/waiting_pulls.h"
#include "server/storage/journal_opener.h"
#include "server/storage/row_store.h"

namespace thermocline {

class CheckpointReply;  // proto/parameter_server.proto
class CheckpointRequest;
class ServerStats;

// What tables with a memory budget need.
struct SpillIo {
  RowStoreOpener* stores = nullptr;  // Outlives the core. Null: no job with such a table is served.
  // Rows can't be read or written any more, and what is accepted can't be applied: the process
  // should end. Called on any thread, perhaps more than once.
  std::function<void(const absl::Status&)> on_broken;
};

class ServerCore {
 public:
  // REQUIRES: `scheduler` outlives the core and runs no task of it after the core is gone. So does
  // `journals`; without it, no job with a durability is served.
  // Without `checkpoints`, none with checkpoints is; without `spill`, none with memory budgets.
  ServerCore(const ServerLimits& limits, Scheduler* scheduler, JournalOpener* journals = nullptr,
             const CheckpointIo& checkpoints = {}, const SpillIo& spill = {});
  ~ServerCore();

  // Makes the tables, loads the base checkpoint's rows and, where the job has a durability, applies
  // what the journal holds beyond; pulls and pushes are answered kRecovering meanwhile. Idempotent.
  // Errors: kInvalidArgument; kFailedPrecondition (configured already, and differently: says in
  // what, naming table and field; no journals, checkpoints or stores here; the base is of another
  // model); kUnavailable (another call recovers: says how far it is); the base's and the journal's.
  // Those of recovering are final.
  absl::Status Configure(const ServerConfig& config);
  // Whether it is configured so, and has recovered. Errors: kUnavailable (not yet),
  // kFailedPrecondition (differently).
  absl::Status CheckConfigured(const ServerConfig& config) const;

  // Answers when the rows asked for may be read (PullAnswer::kReady), or kNotReady after the hold
  // time, or after half of `time_left_us`, the time until the caller's deadline. `done` runs
  // exactly once: before Pull returns, and then the ticket is kNoTicket; or later, on a thread that
  // applies a push, runs timers or drops the pull. After kReady the caller reads the rows with
  // ReadRows. Errors: kUnavailable (not configured), kFailedPrecondition (another job or
  // generation),
  //         kNotFound (unknown table), kInvalidArgument (key not of this shard, staleness beyond
  //         the job's, rank out of range), kDataLoss (acked_through is ahead of the ledger),
  //         kResourceExhausted (admission); where recovering failed, what did: kDataLoss, else
  //         kAborted.
  using PullDone = WaitingPulls::Done;
  PullTicket Pull(const wire::PullRequest& request, PullDone done,
                  int64_t time_left_us = WaitingPulls::kNoDeadline);

  // Answers a pull with kCancelled if it is held still: its caller has gone.
  void DropPull(PullTicket ticket);

  // Writes the weights of `keys`, `with_state` also the optimizer state behind them.
  // rows: [n, FloatsOf(table, with_state)] float32, any alignment. Errors: those of
  // EmbeddingTable::GatherRows. REQUIRES: a Pull of this kind, naming this table, was answered
  // kReady.
  absl::Status ReadRows(TableId table, absl::Span<const Key> keys, bool with_state, uint8_t* rows,
                        wire::PullKind kind = wire::PullKind::kTrain);
  // Whether ReadRows may have to wait for a disk.
  bool MayReadDisk(TableId table) const;
  // Floats in what is read of one row, or kNotFound.
  absl::StatusOr<int> FloatsOf(TableId table, bool with_state) const;

  // Takes one part of a push. `done` runs exactly once: before whatever is applied because of it,
  // or on a thread of the journal's once what it acknowledges is durable. Errors: as Pull; also
  // kInvalidArgument (values of the wrong size, not finite, ranges or chunks that contradict each
  // other), kResourceExhausted also where rows can't be spilled for want of disk. Nothing of a
  // refused chunk is kept.
  using PushDone = std::function<void(absl::StatusOr<wire::PushAnswer>)>;
  void Push(wire::PushChunk chunk, PushDone done);

  // The digest of the rows between two applies, once no complete step waits. `done` runs exactly
  // once: before ComputeDigest returns, or later on a thread that applies; what was completed
  // meanwhile is applied after it. Costs a pass over all rows unless none changed since the last.
  // Errors: kFailedPrecondition (not configured; another job or generation), kResourceExhausted
  // (one at a time: another is being computed), kUnavailable (shutting down).
  struct DigestAnswer {
    Digest digest;
    uint64_t rows = 0;
    Step complete_through;
  };
  using DigestDone = std::function<void(absl::StatusOr<DigestAnswer>)>;
  void ComputeDigest(const std::string& job_id, uint64_t generation, DigestDone done);

  // Names a cut, calls it off or commits it, and says how the cuts stand. `done` runs exactly once,
  // before Checkpoint returns. A cut at the step that is applied begins before Checkpoint returns,
  // as does applying what was completed meanwhile. Errors: kUnavailable (not configured),
  // kFailedPrecondition (another job or generation; no checkpoints; as CheckpointCuts),
  // kInvalidArgument.
  using CheckpointDone = std::function<void(absl::StatusOr<CheckpointReply>)>;
  void Checkpoint(const CheckpointRequest& request, CheckpointDone done);

  // Calls `visit` for every row of a table, in no particular order, between two applies.
  // row: weights, then optimizer state; valid during the call. `changed`: the step that last
  // changed it. Errors: kUnavailable (not configured), kNotFound (unknown table), the store's, also
  // those of a step that couldn't be applied.
  using RowVisitor =
      std::function<void(Key key, absl::Span<const float> row, uint32_t count, Step changed)>;
  absl::Status VisitRows(TableId table, const RowVisitor& visit);

  // Fills in everything the core knows (tables, ledger, holds, staleness, stages).
  void FillStats(ServerStats* stats) const;

  // Answers every held pull, and a digest that waits, with kUnavailable and refuses new work. A
  // checkpoint that is being written is given up.
  void Shutdown();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_SERVER_CORE_H_
