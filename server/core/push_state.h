// The part of a server's state that pushes change: the ledger, pushes whose chunks are still
// coming, pushes that wait to be applied, and the last step that the rows have.
//
// Not thread-safe: the server core's mutex makes each call one critical section. Taking a chunk
// takes BeginChunk, PushRecorder::Record and EndChunk, so that the mutex isn't held while a push is
// checked and written to the journal.
#ifndef THERMOCLINE_SERVER_CORE_PUSH_STATE_H_
#define THERMOCLINE_SERVER_CORE_PUSH_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "server/core/push_acceptance.h"
#include "server/storage/push_journal.h"

namespace thermocline {

class ServerStats;  // proto/parameter_server.proto

struct PushCounters {
  uint64_t accepted = 0;    // Pushes.
  uint64_t duplicates = 0;  // Chunks that were stored already, or that came after their push.
  uint64_t not_ready = 0;   // Chunks of pushes that came too early.
  uint64_t refused = 0;     // Chunks that found no room, in memory or on the disk.
};

class PushState {
 public:
  // Every worker's pushes up to `base` are in the rows.
  PushState(uint32_t num_workers, uint64_t max_pending_bytes, Step base = kNoStep);

  // kDataLoss where the worker holds an acknowledgement of a push that this server doesn't have.
  // REQUIRES: the rank is a worker's.
  absl::Status CheckAcknowledged(const wire::Header& header) const;

  // A chunk that is being taken. What `chunks` points to doesn't change before EndChunk.
  struct BegunChunk {
    WorkerRank rank;
    uint32_t chunk = 0;
    const std::map<uint32_t, wire::PushChunk>* chunks =
        nullptr;             // With it, those of its push so far.
    bool completes = false;  // No chunk is missing.
    // Where engaged, it is the answer, and EndChunk must not be called.
    std::optional<wire::PushAnswer> answer;
  };
  // Begins to take a valid chunk. PushRecorder::Record comes next, then EndChunk; only then may
  // another chunk be begun.
  // Errors: kDataLoss, kInvalidArgument (contradicts what came before), kResourceExhausted (there
  // is no room now), kOutOfRange (the pushes of its step, of all workers, will never have room).
  // Nothing of the chunk is kept then.
  absl::StatusOr<BegunChunk> BeginChunk(wire::PushChunk&& chunk);
  // Ends it. If `recorded` is OK the chunk counts, and its push is accepted where no chunk is
  // missing. Else nothing of it is kept, and the error is the answer. REQUIRES: !begun.answer
  absl::StatusOr<wire::PushAnswer> EndChunk(const BegunChunk& begun, absl::Status recorded);
  // Counts a chunk that found no room before it was begun.
  void CountRefused() { ++counters_.refused; }
  // Takes a chunk in one go, without a journal.
  absl::StatusOr<wire::PushAnswer> TakeChunk(wire::PushChunk&& chunk);
  // Takes a chunk that a journal gave back. Errors: kDataLoss (no journal would hold it), and those
  // of BeginChunk.
  absl::Status ReplayChunk(wire::PushChunk&& chunk);

  // Whether every worker's push for the next step is accepted.
  bool NextIsComplete() const { return num_waiting_ == accepted_.size(); }
  struct CompleteStep {
    Step step;
    std::vector<AssembledPush> pushes;
  };
  // Moves the pushes of the next step out, in rank order. REQUIRES: NextIsComplete()
  CompleteStep TakeNext();
  // The pushes that TakeNext returned are in the rows now.
  void MarkApplied(const CompleteStep& applied);

  // Whether a cut can be at `step`: TakeNext has returned no later step.
  bool CanCutAt(Step step) const { return next_step_ <= step + 1; }

  // The pushes of every worker up to this step are in the rows.
  Step complete_through() const { return complete_through_; }
  // The last step that was accepted of every worker.
  Step accepted_through() const;
  uint64_t pending_bytes() const { return pending_bytes_; }
  const PushCounters& counters() const { return counters_; }
  void FillStats(ServerStats* stats) const;

 private:
  absl::Status CheckRoom(const wire::PushChunk& chunk) const;
  uint64_t BytesOfNextStep() const;
  absl::Status CheckLearningRate(const wire::PushChunk& chunk) const;
  void Accept(WorkerRank rank);

  const uint64_t max_pending_bytes_;
  PushLedger ledger_;
  std::vector<PushAssembly> assemblies_;             // [num_workers]
  Step next_step_;                                   // The step that TakeNext returns next.
  std::vector<std::deque<AssembledPush>> accepted_;  // [num_workers], each from next_step_ on
  size_t num_waiting_ = 0;                           // Queues of accepted_ that are not empty.
  Step complete_through_;
  // By step, for the steps beyond complete_through_ that a push came for.
  std::map<Step, float> learning_rates_;
  uint64_t pending_bytes_ = 0;  // In assemblies_, and in pushes that are not applied yet.
  PushCounters counters_;
};

// Checks a chunk and writes it to the journal before it counts, which takes a while. Not
// thread-safe.
class PushRecorder {
 public:
  // From now on every chunk is written to `journal`, which outlives this.
  void WriteTo(PushJournal* journal) { journal_ = journal; }

  // If no chunk of its push is missing, checks the push; then writes the chunk to the journal.
  // Errors: kInvalidArgument (the push has a key twice), the journal's.
  absl::Status Record(const PushState::BegunChunk& begun);

 private:
  DistinctKeys distinct_keys_;
  PushJournal* journal_ = nullptr;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_STATE_H_
