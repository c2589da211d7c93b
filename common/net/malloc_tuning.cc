#include "common/net/malloc_tuning.h"

#include <malloc.h>

namespace thermocline {

void TuneMallocForMessages() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);   // The largest value that glibc takes.
  mallopt(M_TRIM_THRESHOLD, 512 << 20);  // Bytes free at the heap's end before it shrinks.
}

}  // namespace thermocline
