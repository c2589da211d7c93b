// Whether a push names a key twice. Whoever applies pushes relies on it that none does: a key's
// second update would come before or after the first as threads happen to run.
//
// Not thread-safe; keeps its memory for the next push.
#ifndef THERMOCLINE_SERVER_CORE_DISTINCT_KEYS_H_
#define THERMOCLINE_SERVER_CORE_DISTINCT_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "server/core/key_numbers.h"

namespace thermocline {

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

#endif  // THERMOCLINE_SERVER_CORE_DISTINCT_KEYS_H_
