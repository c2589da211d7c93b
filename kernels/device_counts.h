// A device's counts of its own work. Any thread may read them.
#ifndef THERMOCLINE_KERNELS_DEVICE_COUNTS_H_
#define THERMOCLINE_KERNELS_DEVICE_COUNTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace thermocline {

// How often a device used a slower or more exact way than it was asked for.
struct DeviceFallbacks {
  int64_t failed_captures = 0;          // calls of Capture that gave null
  int64_t full_precision_products = 0;  // shapes computed in kFloat32, not in MlpConfig::precision
};

struct CopiedBytes {
  uint64_t to_device = 0;
  uint64_t from_device = 0;
};

// Bytes copied between host and device. A device whose memory is the host's copies nothing: its
// callers count what a device of its own would have copied for them, so that runs on both can be
// compared.
//
// Thread-safe.
class CopyCounter {
 public:
  void AddToDevice(size_t bytes) { to_device_.fetch_add(bytes, std::memory_order_relaxed); }
  void AddFromDevice(size_t bytes) { from_device_.fetch_add(bytes, std::memory_order_relaxed); }
  CopiedBytes bytes() const {
    return {to_device_.load(std::memory_order_relaxed),
            from_device_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<uint64_t> to_device_{0};
  std::atomic<uint64_t> from_device_{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_DEVICE_COUNTS_H_
