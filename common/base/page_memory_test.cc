#include "common/base/page_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace thermocline {
namespace {

TEST(PageMemoryTest, IsZeroedAlignedAndKeepsItsBytesOnHugePages) {
  for (const size_t bytes :
       {size_t{1}, size_t{300} << 10, kHugePageBytes, 3 * kHugePageBytes + 1}) {
    for (const auto pages : {PageMemory::HugePages::kAtOnce, PageMemory::HugePages::kLater}) {
      PageMemory memory(bytes, pages);
      ASSERT_GE(memory.bytes(), bytes);
      const size_t alignment = bytes < kHugePageBytes ? kCacheLineBytes : kHugePageBytes;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignment, 0u) << bytes;
      uint8_t* const end = memory.data() + memory.bytes();
      EXPECT_EQ(std::count(memory.data(), end, 0), static_cast<ptrdiff_t>(memory.bytes()));
      std::fill(memory.data(), end, 7);
      memory.MoveToHugePages();
      EXPECT_EQ(std::count(memory.data(), end, 7), static_cast<ptrdiff_t>(memory.bytes()));
    }
  }
}

TEST(PageMemoryTest, MovesLeaveNothing) {
  PageMemory first(kHugePageBytes, PageMemory::HugePages::kLater);
  uint8_t* const data = first.data();
  PageMemory second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.bytes(), 0u);
}

}  // namespace
}  // namespace thermocline
