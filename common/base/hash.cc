#include "common/base/hash.h"

#include <nmmintrin.h>

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

Digest CandidateDigest(TableId table, Key key, uint32_t count) {
  Digest digest = RowDigest(table, key, {});
  digest.low = Mix64(digest.low ^ count);
  digest.high = Mix64(digest.high + count);
  return digest;
}

// One chain of the processor's own instruction: 8 bytes in 3 cycles, several times as fast as a
// disk.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~crc;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto last = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++at) last = _mm_crc32_u8(last, *at);
  return ~last;
}

}  // namespace thermocline
