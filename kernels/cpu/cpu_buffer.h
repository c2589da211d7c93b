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

 private:
  const size_t bytes_;
  void* const data_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_BUFFER_H_
