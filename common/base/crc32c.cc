#include "common/base/crc32c.h"

#include <nmmintrin.h>

#include <cstring>

namespace thermocline {

// One chain of the processor's own instruction: 8 bytes in 3 cycles, several times what a disk
// takes.
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
