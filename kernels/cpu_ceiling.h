// What the CPUs of this machine can multiply and add at most, measured.
#ifndef THERMOCLINE_KERNELS_CPU_CEILING_H_
#define THERMOCLINE_KERNELS_CPU_CEILING_H_

#include <string>

namespace thermocline {

// The processor as it names itself: "AMD EPYC, family 26, model 2, AVX-512 with bf16".
std::string DescribeCpu();

// Multiplications and additions a second, those of all threads together.
struct CpuCeiling {
  double float32 = 0;
  double bfloat16 = 0;  // Pairs of bfloat16, summed in float32; 0: the CPU has no such instruction.
};

// Measures `threads` threads at once. A repeat takes each of them about a millisecond and the
// result is the median of all repeats, by the threads' processor time: what else runs counts
// little. The operands are in registers, so no product of matrices is faster.
CpuCeiling MeasureCpuCeiling(int threads, int repeats);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CEILING_H_
