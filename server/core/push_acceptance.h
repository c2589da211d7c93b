// What it takes to accept a push: the ledger says whether it is the next one of its worker, an
// assembly puts its chunks together, and no key may be in it twice. push_state.h puts these into
// order.
//
// Nothing here is thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_PUSH_ACCEPTANCE_H_
#define THERMOCLINE_SERVER_CORE_PUSH_ACCEPTANCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/key_numbers.h"
#include "common/wire/messages.h"

namespace thermocline {

// Which pushes a server has accepted: one number per worker, the last step. The steps of one worker
// are contiguous, so that number says of any push whether it is new, known or early.
class PushLedger {
 public:
  // Every worker's pushes up to `base` count as accepted.
  explicit PushLedger(uint32_t num_workers, Step base = kNoStep)
      : accepted_through_(num_workers, base) {}

  // What to do with a push.
  enum class Verdict {
    kNext,       // It follows what was accepted: take it.
    kDuplicate,  // It was accepted before: acknowledge it again.
    kEarly,      // A push before it is missing: NOT_READY.
  };
  // REQUIRES: rank is a worker's.
  Verdict Judge(WorkerRank rank, Step step) const;

  // kDataLoss where the worker holds an acknowledgement that this ledger knows nothing of.
  absl::Status CheckAcknowledged(WorkerRank rank, Step acked_through) const;

  // Accepts a push. REQUIRES: Judge(rank, step) == kNext
  void Accept(WorkerRank rank, Step step);

  // The last step accepted from a worker; kNoStep before the first.
  Step accepted_through(WorkerRank rank) const { return accepted_through_[rank.value()]; }
  uint32_t num_workers() const { return static_cast<uint32_t>(accepted_through_.size()); }

 private:
  std::vector<Step> accepted_through_;  // [num_workers]
};

// A push of this many chunks of 512 KiB is 32 GiB: more is a malformed request.
inline constexpr uint32_t kMaxChunks = 65536;

// Memory that a chunk holds.
uint64_t BytesOf(const wire::PushChunk& chunk);

// A push with all its chunks, in chunk order.
struct AssembledPush {
  WorkerRank rank;
  Step step;
  float learning_rate = 0;
  uint64_t bytes = 0;
  std::vector<wire::PushChunk> chunks;
};

// Puts the chunks of one worker's next push together. They may come in any order and more than
// once.
class PushAssembly {
 public:
  enum class Added {
    kStored,
    kDuplicate,  // The chunk was there already, with the same content.
    kComplete,   // Stored, and no chunk is missing now.
  };
  // Takes a chunk; moves from it only where it is stored. All chunks come from one worker and,
  // until Take, belong to one push. Errors: kInvalidArgument (contradicts a chunk taken before, or
  // chunk >= num_chunks, or too many chunks).
  absl::StatusOr<Added> Add(wire::PushChunk&& chunk);

  // Forgets a chunk again. REQUIRES: Add stored it.
  void Drop(uint32_t chunk);

  // Moves the push out and starts anew. REQUIRES: Add answered kComplete.
  AssembledPush Take();

  bool empty() const { return chunks_.empty(); }
  // REQUIRES: !empty()
  Step step() const { return step_; }
  uint64_t bytes() const { return bytes_; }
  const std::map<uint32_t, wire::PushChunk>& chunks() const { return chunks_; }

 private:
  // Of the push, as its first chunk names them.
  WorkerRank rank_;
  Step step_;
  float learning_rate_ = 0;
  uint32_t num_chunks_ = 0;

  // By number: what is held is what came, whatever num_chunks claims.
  std::map<uint32_t, wire::PushChunk> chunks_;
  uint64_t bytes_ = 0;
};

// Whether a push has a key twice. Applying relies on it that none does: a key's second update would
// come before or after the first as threads happen to run. Keeps its memory for the next push.
class DistinctKeys {
 public:
  // chunks: of one push, valid. Of one table a key may have one gradient and one written-back row.
  // Takes some nanoseconds a key. Errors: kInvalidArgument (names table and key), kOutOfRange (more
  // keys of one table than can be numbered).
  absl::Status Check(const std::map<uint32_t, wire::PushChunk>& chunks);

 private:
  // The keys of one table and kind in one chunk.
  struct Group {
    TableId table;
    wire::PushKind kind;
    absl::Span<const Key> keys;
  };

  // Of groups_, by table and kind. `first`: of the push's chunks.
  absl::Status CheckGroups(const wire::PushChunk& first);
  // The first of `keys` that came before; keys.size() where all are new. Fetches entries so many
  // keys `ahead`.
  size_t Insert(uint64_t table_salt, absl::Span<const Key> keys, size_t ahead);

  std::vector<Group> groups_;
  KeyNumbers seen_;  // Of one table and kind.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_ACCEPTANCE_H_
