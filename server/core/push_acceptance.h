// How a server accepts a push: the ledger says whether the push is the next one of its worker, an
// assembly puts its chunks together, and a check finds keys that are in it twice. push_state.h
// calls these in order.
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

// The pushes that a server has accepted: of each worker the last step. The steps of one worker are
// contiguous, so the last one says whether a push is new, known or early.
class PushLedger {
 public:
  // Every worker's pushes up to `base` count as accepted.
  explicit PushLedger(uint32_t num_workers, Step base = kNoStep)
      : accepted_through_(num_workers, base) {}

  // The place of a push among those of its worker, and what the server does with it.
  enum class Order {
    kNext,       // It follows the last accepted one: the server takes it.
    kDuplicate,  // It was accepted before: the server acknowledges it again.
    kEarly,      // A push before it is missing: the server answers NOT_READY.
  };
  // REQUIRES: rank is a worker's.
  Order OrderOf(WorkerRank rank, Step step) const;

  // kDataLoss where the worker holds an acknowledgement of a push that this ledger doesn't have.
  absl::Status CheckAcknowledged(WorkerRank rank, Step acked_through) const;

  // Accepts a push. REQUIRES: OrderOf(rank, step) == kNext
  void Accept(WorkerRank rank, Step step);

  // The last step accepted from a worker; kNoStep before the first.
  Step accepted_through(WorkerRank rank) const { return accepted_through_[rank.value()]; }
  uint32_t num_workers() const { return static_cast<uint32_t>(accepted_through_.size()); }

 private:
  std::vector<Step> accepted_through_;  // [num_workers]
};

// A push of this many chunks of 512 KiB has 32 GiB. A request with more chunks is malformed.
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

// Puts the chunks of one worker's next push together. Chunks may come in any order and more than
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
  // As the first chunk of the push has them.
  WorkerRank rank_;
  Step step_;
  float learning_rate_ = 0;
  uint32_t num_chunks_ = 0;

  // By chunk number. Memory is taken for chunks that came, not for num_chunks.
  std::map<uint32_t, wire::PushChunk> chunks_;
  uint64_t bytes_ = 0;
};

// Checks that no push has a key twice. If one had, two threads might update the row, and the result
// would depend on their order. Keeps its memory for the next push.
class DistinctKeys {
 public:
  // chunks: all chunks of one push, each of them valid. A key of a table may have one gradient, one
  // count without a gradient and one written-back row. Takes some nanoseconds a key. Errors:
  // kInvalidArgument (names table and key), kOutOfRange (more keys of one table than can be
  // numbered).
  absl::Status Check(const std::map<uint32_t, wire::PushChunk>& chunks);

 private:
  // The keys of one table and kind in one chunk.
  struct Group {
    TableId table;
    wire::PushKind kind;
    absl::Span<const Key> keys;
  };

  // Checks groups_, by table and kind. `first`: the push's first chunk.
  absl::Status CheckGroups(const wire::PushChunk& first);
  // Returns the position of the first key that was inserted before, or keys.size(). Prefetches
  // entries `ahead` keys before they are used.
  size_t Insert(uint64_t table_salt, absl::Span<const Key> keys, size_t ahead);

  std::vector<Group> groups_;
  KeyNumbers seen_;  // The keys of one table and kind.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_ACCEPTANCE_H_
