// One parameter server without gRPC: generation, ledger, acceptance of pushes, apply, held pulls
// (docs/machines.md).
//
// A state machine: its state is a function of its configuration and the pushes it accepted, in
// order. A journal keeps the pushes where the job wants it. Time comes from a Scheduler and answers
// leave through callbacks, so the simulation runs many servers in one thread. Thread-safe.
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
  // Called once rows can't be read or written any more, so that accepted pushes can't be applied:
  // the process should end. On any thread, perhaps more than once.
  std::function<void(const absl::Status&)> on_broken;
};

class ServerCore {
 public:
  // REQUIRES: `scheduler` and `journals` outlive the core, and `scheduler` runs no task of it after
  // the core is gone. Jobs with a durability need `journals`, jobs with checkpoints `checkpoints`,
  // and jobs with memory budgets `spill`.
  ServerCore(const ServerLimits& limits, Scheduler* scheduler, JournalOpener* journals = nullptr,
             const CheckpointIo& checkpoints = {}, const SpillIo& spill = {});
  ~ServerCore();

  // Makes the tables, loads the base checkpoint's rows and, where the job has a durability, applies
  // the pushes that the journal holds beyond the base. Pulls and pushes are answered kRecovering
  // meanwhile. Idempotent. Errors: kInvalidArgument; kFailedPrecondition (configured already, and
  // differently: names table and field; no journals, checkpoints or stores here; the base is of
  // another model); kUnavailable (another call recovers: says how far it is); the base's and the
  // journal's. Errors of recovering are final.
  absl::Status Configure(const ServerConfig& config);
  // Whether the server is configured with `config`, and has recovered. Errors: kUnavailable (not
  // yet), kFailedPrecondition (it is configured differently).
  absl::Status CheckConfigured(const ServerConfig& config) const;

  // Answers when the rows asked for may be read (PullAnswer::kReady), or kNotReady after the hold
  // time, or after half of `time_left_us`, the time until the caller's deadline. `done` runs
  // exactly once: before Pull returns, and then the ticket is kNoTicket; or later, on a thread that
  // applies a push, runs timers or drops the pull. After kReady the caller reads the rows with
  // ReadRows. Errors: kUnavailable (not configured), kFailedPrecondition (another job or
  // generation), kNotFound (unknown table), kInvalidArgument (key not of this shard, staleness
  // beyond the job's, rank out of range), kDataLoss (acked_through is ahead of the ledger),
  // kResourceExhausted (admission); where recovering failed: kDataLoss or kAborted.
  using PullDone = WaitingPulls::Done;
  PullTicket Pull(const wire::PullRequest& request, PullDone done,
                  int64_t time_left_us = WaitingPulls::kNoDeadline);

  // Answers a pull with kCancelled if it is still held. Called when its caller has gone.
  void DropPull(PullTicket ticket);

  // Writes the weights of `keys` and, with `with_state`, the optimizer state behind them.
  //   rows: [n, FloatsOf(table, with_state)] float32, any alignment
  // Errors: those of EmbeddingTable::GatherRows. REQUIRES: a Pull of this kind that names this
  // table was answered kReady.
  absl::Status ReadRows(TableId table, absl::Span<const Key> keys, bool with_state, uint8_t* rows,
                        wire::PullKind kind = wire::PullKind::kTrain);
  // Whether ReadRows may have to wait for a disk.
  bool MayReadDisk(TableId table) const;
  // Floats in what is read of one row, or kNotFound.
  absl::StatusOr<int> FloatsOf(TableId table, bool with_state) const;

  // Takes one chunk of a push. `done` runs exactly once: before anything is applied because of the
  // chunk; or, where the job has a durability, on a thread of the journal once the push that it
  // acknowledges is durable. Errors: as Pull; also kInvalidArgument (values of the wrong size or
  // not finite, ranges or chunks that contradict each other), kResourceExhausted (the disk has no
  // room for spilled rows). Nothing of a refused chunk is kept.
  using PushDone = std::function<void(absl::StatusOr<wire::PushAnswer>)>;
  void Push(wire::PushChunk chunk, PushDone done);

  // Computes the digest of the rows between two applies, once no complete step waits. `done` runs
  // exactly once: before ComputeDigest returns, or later on a thread that applies. Steps that are
  // completed meanwhile are applied after it. Costs a pass over all rows unless none changed since
  // the last digest. Errors: kFailedPrecondition (not configured; another job or generation),
  // kResourceExhausted (another digest is being computed, or just was), kUnavailable (shutting
  // down).
  struct DigestAnswer {
    Digest digest;
    uint64_t rows = 0;
    Step complete_through;
  };
  using DigestDone = std::function<void(absl::StatusOr<DigestAnswer>)>;
  void ComputeDigest(const std::string& job_id, uint64_t generation, DigestDone done);

  // Names a cut, calls it off or commits it, and says how the cuts stand. `done` runs exactly once,
  // before Checkpoint returns. Where the cut is at the last applied step, it begins before
  // Checkpoint returns; steps that were completed meanwhile are then applied, too. Errors:
  // kUnavailable (not configured), kFailedPrecondition (another job or generation; no checkpoints;
  // as CheckpointCuts), kInvalidArgument.
  using CheckpointDone = std::function<void(absl::StatusOr<CheckpointReply>)>;
  void Checkpoint(const CheckpointRequest& request, CheckpointDone done);

  // Gives `visit` every row of a table, in no particular order, between two applies.
  // row: weights, then optimizer state; valid during the call. `changed`: the step that last
  // changed it. Errors: kUnavailable (not configured), kNotFound (unknown table), the store's, and
  // that of a step which couldn't be applied.
  using RowVisitor =
      std::function<void(Key key, absl::Span<const float> row, uint32_t count, Step changed)>;
  absl::Status VisitRows(TableId table, const RowVisitor& visit);

  // Fills in everything the core knows (tables, ledger, holds, staleness, stages).
  void FillStats(ServerStats* stats) const;

  // Answers every held pull, and a digest that waits, with kUnavailable; refuses new work; stops
  // writing a checkpoint.
  void Shutdown();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_SERVER_CORE_H_
