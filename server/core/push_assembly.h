// Puts the parts of one worker's next push together. Chunks may come in any order and more than
// once.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_PUSH_ASSEMBLY_H_
#define THERMOCLINE_SERVER_CORE_PUSH_ASSEMBLY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

// A push of this many parts of 512 KiB is 32 GiB: more is a malformed request.
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

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_ASSEMBLY_H_
