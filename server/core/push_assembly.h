// Puts the parts of one worker's next push together. Parts may come in any order and more than
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
inline constexpr uint32_t kMaxParts = 65536;

// Memory that a part holds.
uint64_t BytesOf(const wire::PushPart& part);

// A push with all its parts, in part order.
struct AssembledPush {
  WorkerRank rank;
  Step step;
  float learning_rate = 0;
  uint64_t bytes = 0;
  std::vector<wire::PushPart> parts;
};

class PushAssembly {
 public:
  enum class Added {
    kStored,
    kDuplicate,  // The part was there already, with the same content.
    kComplete,   // Stored, and no part is missing now.
  };
  // Takes a part; moves from it only where it is stored. All parts come from one worker and, until
  // Take, belong to one push.
  // Errors: kInvalidArgument (contradicts a part taken before, or part >= num_parts, or too many
  // parts).
  absl::StatusOr<Added> Add(wire::PushPart&& part);

  // Forgets a part again. REQUIRES: Add stored it.
  void Drop(uint32_t part);

  // Moves the push out and starts anew. REQUIRES: Add answered kComplete.
  AssembledPush Take();

  bool empty() const { return parts_.empty(); }
  // REQUIRES: !empty()
  Step step() const { return step_; }
  uint64_t bytes() const { return bytes_; }
  const std::map<uint32_t, wire::PushPart>& parts() const { return parts_; }

 private:
  // Of the push, as its first part names them.
  WorkerRank rank_;
  Step step_;
  float learning_rate_ = 0;
  uint32_t num_parts_ = 0;

  // By number: what is held is what came, whatever num_parts claims.
  std::map<uint32_t, wire::PushPart> parts_;
  uint64_t bytes_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_ASSEMBLY_H_
