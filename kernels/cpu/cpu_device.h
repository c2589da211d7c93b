// Device on the CPUs of this machine: the specification of every operation in device.h.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_DEVICE_H_
#define THERMOCLINE_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace thermocline {

enum class CpuIsaLimit { kAuto, kAvx2, kAvx512 };

// Whether this machine has the instructions that `isa` asks for.
bool CpuSupports(CpuIsaLimit isa);

// Whether products of bf16 are made with AVX512_BF16's instructions, not with AVX2's fused
// multiply-adds.
bool UsesBf16Instructions(CpuIsaLimit isa);

// Checks that this machine computes products of bf16 with the bits that they have on every CPU
// (CheckBf16Gemm).
// Errors: kFailedPrecondition (it doesn't).
absl::Status CheckCpuBf16(CpuIsaLimit isa);

struct CpuDeviceOptions {
  int num_threads = 1;  // Threads that compute, the calling one included.
  CpuIsaLimit isa = CpuIsaLimit::kAuto;
};

// Every operation has finished when its call returns. REQUIRES: CpuSupports(options.isa)
std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_DEVICE_H_
