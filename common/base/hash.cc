#include "common/base/hash.h"

#include <cstring>

namespace thermocline {

Digest RowDigest(TableId table, Key key, absl::Span<const float> row) {
  const uint64_t start = Mix64(TableSalt(table) ^ Mix64(key)) + row.size();
  // Two chains with different steps, so that they run in parallel and don't collide together.
  Digest digest{start, Mix64(~start)};
  size_t i = 0;
  for (; i + 2 <= row.size(); i += 2) {
    uint64_t word;
    std::memcpy(&word, row.data() + i, sizeof(word));
    digest.low = Mix64(digest.low ^ word);
    digest.high = Mix64(digest.high + (word << 32 | word >> 32));
  }
  if (i < row.size()) {
    uint32_t word;
    std::memcpy(&word, row.data() + i, sizeof(word));
    digest.low = Mix64(digest.low ^ word);
    digest.high = Mix64(digest.high + word);
  }
  return digest;
}

}  // namespace thermocline
