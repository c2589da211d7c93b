#include "kernels/cpu/cpu_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// From this size on memory comes from the kernel: already zero, and resident only where it is used.
constexpr size_t kMappedBytes = size_t{64} << 20;

void* AllocateZeroed(size_t bytes) {
  if (bytes >= kMappedBytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    madvise(data, bytes, MADV_HUGEPAGE);  // A wish; it may fail.
    return data;
  }
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  const size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  void* data = nullptr;
  CHECK_EQ(posix_memalign(&data, alignment, rounded == 0 ? kCacheLine : rounded), 0);
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // A wish; it may fail.
  std::memset(data, 0, rounded);
  return data;
}

void Free(void* data, size_t bytes) {
  if (bytes >= kMappedBytes) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

}  // namespace

CpuBuffer::CpuBuffer(size_t bytes) : bytes_(bytes), data_(AllocateZeroed(bytes)) {}

CpuBuffer::~CpuBuffer() { Free(data_, bytes_); }

void CpuBuffer::Resize(size_t kept_bytes, size_t bytes) {
  CHECK_LE(kept_bytes, std::min(bytes_, bytes));
  if (bytes_ >= kMappedBytes && bytes >= kMappedBytes) {
    data_ = mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
    CHECK(data_ != MAP_FAILED);
    madvise(data_, bytes, MADV_HUGEPAGE);
  } else {
    void* const other = AllocateZeroed(bytes);
    std::memcpy(other, data_, kept_bytes);
    Free(data_, bytes_);
    data_ = other;
  }
  bytes_ = bytes;
}

}  // namespace thermocline
