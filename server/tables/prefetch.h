// Prefetches memory ahead of its use. GCC takes a function that does nothing else for one without
// effect, and leaves out its calls: so these are always inlined.
#ifndef THERMOCLINE_SERVER_TABLES_PREFETCH_H_
#define THERMOCLINE_SERVER_TABLES_PREFETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "common/base/page_memory.h"

namespace thermocline {

// The hardware prefetches the rest of a longer row by itself.
inline constexpr size_t kMaxPrefetchBytes = 512;

// `bytes` is a constant where the caller's template knows it.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchRange(const void* begin, size_t bytes) {
  const size_t end = std::min(bytes, kMaxPrefetchBytes);
  for (size_t offset = 0; offset < end; offset += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const uint8_t*>(begin) + offset);
  }
}

// The same for memory that is written next, at any alignment. Without it the stores would wait for
// their cache lines one after the other, since a reply is larger than the second-level cache.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchForWrite(uint8_t* begin, size_t bytes) {
  const size_t end = std::min(bytes, kMaxPrefetchBytes);
  for (size_t offset = 0; offset < end; offset += kCacheLineBytes) {
    __builtin_prefetch(begin + offset, /*rw=*/1);
  }
  __builtin_prefetch(begin + end - 1, /*rw=*/1);
}

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_PREFETCH_H_
