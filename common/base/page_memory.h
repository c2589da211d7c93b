// Zeroed memory from the operating system, on huge pages where it is large enough to profit.
#ifndef THERMOCLINE_COMMON_BASE_PAGE_MEMORY_H_
#define THERMOCLINE_COMMON_BASE_PAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

namespace thermocline {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Owns one range, aligned to a cache line or better. Pages of a large range become resident when
// they are first touched, so a range may be asked for well ahead of its use. Running out of memory
// ends the process, as it does with operator new.
class PageMemory {
 public:
  // A huge page becomes resident as a whole at its first touch, so kAtOnce is for memory that will
  // be used to the end.
  enum class HugePages { kAtOnce, kLater };

  PageMemory() = default;
  PageMemory(size_t bytes, HugePages huge_pages);
  ~PageMemory();
  PageMemory(PageMemory&& other) noexcept { *this = std::move(other); }
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Moves a range that was made with kLater to huge pages, in place; other threads may use it
  // meanwhile. The rest after the last whole huge page stays on small pages. So does everything
  // where the kernel can't move it.
  void MoveToHugePages();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PAGE_MEMORY_H_
