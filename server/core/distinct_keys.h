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
#include "common/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

class DistinctKeys {
 public:
  // parts: of one push, valid. Of one table a key may have one gradient and one written-back row.
  // Takes some nanoseconds a key. Errors: kInvalidArgument (names table and key).
  absl::Status Check(const std::map<uint32_t, wire::PushPart>& parts);

 private:
  // The keys of one table and kind in one part.
  struct Group {
    TableId table;
    wire::PushKind kind;
    absl::Span<const Key> keys;
  };
  // Open addressing. A slot is free unless it bears the present stamp, so that nothing need be
  // cleared between two tables, and that a small one stays within few cache lines.
  struct Slot {
    Key key = 0;
    uint32_t stamp = 0;
  };

  void MakeRoom(size_t num_keys);
  // The first of `keys` that was inserted since MakeRoom; keys.size() where all are new.
  size_t Insert(uint64_t table_salt, absl::Span<const Key> keys);

  std::vector<Group> groups_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;  // Of the slots in use for this table.
  uint32_t stamp_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_DISTINCT_KEYS_H_
