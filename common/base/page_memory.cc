#include "common/base/page_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "common/base/check.h"

namespace thermocline {
namespace {

// From here on, ranges come from mmap: no copy of them stays in malloc's free lists.
constexpr size_t kMapBytes = size_t{256} << 10;
constexpr size_t kPageBytes = 4096;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack.

// The start is a multiple of `alignment`; what was mapped before and behind is given back.
uint8_t* MapAligned(size_t bytes, size_t alignment) {
  const size_t mapped_bytes = bytes + alignment - kPageBytes;
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapped != MAP_FAILED);
  uint8_t* begin = static_cast<uint8_t*>(mapped);
  const size_t skip = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (skip > 0) munmap(begin, skip);
  const size_t rest = mapped_bytes - skip - bytes;
  if (rest > 0) munmap(begin + skip + bytes, rest);
  return begin + skip;
}

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

PageMemory::PageMemory(size_t bytes, HugePages huge_pages) {
  if (bytes < kMapBytes) {
    bytes_ = RoundUp(bytes, kCacheLineBytes);
    data_ = static_cast<uint8_t*>(::operator new(bytes_, std::align_val_t(kCacheLineBytes)));
    std::memset(data_, 0, bytes_);
    return;
  }
  bytes_ = RoundUp(bytes, kPageBytes);
  data_ = MapAligned(bytes_, bytes_ >= kHugePageBytes ? kHugePageBytes : kPageBytes);
  if (huge_pages == HugePages::kAtOnce) madvise(data_, bytes_, MADV_HUGEPAGE);
}

void PageMemory::MoveToHugePages() {
  if (bytes_ < kHugePageBytes) return;
  madvise(data_, bytes_, MADV_HUGEPAGE);
  madvise(data_, bytes_ / kHugePageBytes * kHugePageBytes, kCollapse);  // From Linux 6.1 on.
}

PageMemory::~PageMemory() {
  if (data_ == nullptr) return;
  if (bytes_ < kMapBytes) {
    ::operator delete(data_, std::align_val_t(kCacheLineBytes));
  } else {
    // Fails where the range lies in the midst of a mapping that can't be split, since the process
    // has as many as it may have (vm.max_map_count). Then its pages leave, and its addresses stay.
    if (munmap(data_, bytes_) != 0) madvise(data_, bytes_, MADV_DONTNEED);
  }
}

}  // namespace thermocline
