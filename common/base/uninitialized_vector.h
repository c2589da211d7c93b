// A std::vector whose resize() leaves numbers uninitialized. It serves as a buffer that is
// overwritten at once.
#ifndef THERMOCLINE_COMMON_BASE_UNINITIALIZED_VECTOR_H_
#define THERMOCLINE_COMMON_BASE_UNINITIALIZED_VECTOR_H_

#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace thermocline {

// Leaves new elements uninitialized, and aligns the memory to a cache line.
template <typename T>
class UninitializedAllocator {
  static_assert(std::is_trivial_v<T>);

 public:
  using value_type = T;
  UninitializedAllocator() = default;
  template <typename U>
  UninitializedAllocator(const UninitializedAllocator<U>&) {}

  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }

  template <typename U, typename... Args>
  void construct(U* p, Args&&... args) {
    if constexpr (sizeof...(Args) == 0) {
      ::new (static_cast<void*>(p)) U;
    } else {
      ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
    }
  }
  template <typename U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  friend bool operator==(UninitializedAllocator, UninitializedAllocator) { return true; }
  friend bool operator!=(UninitializedAllocator, UninitializedAllocator) { return false; }
};

template <typename T>
using UninitializedVector = std::vector<T, UninitializedAllocator<T>>;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_UNINITIALIZED_VECTOR_H_
