#include "kernels/cpu/cpu_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "common/check.h"

namespace thermocline {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

void* AllocateZeroed(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  const size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  void* data = nullptr;
  CHECK_EQ(posix_memalign(&data, alignment, rounded == 0 ? kCacheLine : rounded), 0);
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // A wish; it may fail.
  std::memset(data, 0, rounded);
  return data;
}

}  // namespace

CpuBuffer::CpuBuffer(size_t bytes) : data_(AllocateZeroed(bytes)) {}

CpuBuffer::~CpuBuffer() { std::free(data_); }

}  // namespace thermocline
