// What the processor of this machine has beyond x86-64-v3, which every program of ours needs.
#ifndef THERMOCLINE_COMMON_BASE_CPU_FEATURES_H_
#define THERMOCLINE_COMMON_BASE_CPU_FEATURES_H_

namespace thermocline {

inline bool CpuHasAvx512() { return __builtin_cpu_supports("avx512f") != 0; }

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_CPU_FEATURES_H_
