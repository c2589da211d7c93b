// Memory of the CPU device: zero at first, on huge pages where it is large.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_BUFFER_H_
#define THERMOCLINE_KERNELS_CPU_CPU_BUFFER_H_

#include <cstddef>

#include "kernels/device.h"

namespace thermocline {

class CpuBuffer : public DeviceBuffer {
 public:
  explicit CpuBuffer(size_t bytes);
  ~CpuBuffer() override;
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

  void* data() override { return data_; }

  // Keeps the first `kept_bytes`; the values of the others are undefined. Large memory moves
  // without being copied. REQUIRES: kept_bytes <= the size before, and <= bytes.
  void Resize(size_t kept_bytes, size_t bytes);

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_BUFFER_H_
