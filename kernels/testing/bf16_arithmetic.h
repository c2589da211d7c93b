// The arithmetic of bf16 products on a CPU (kernels/cpu/bf16_gemm.h), one number at a time.
#ifndef THERMOCLINE_KERNELS_TESTING_BF16_ARITHMETIC_H_
#define THERMOCLINE_KERNELS_TESTING_BF16_ARITHMETIC_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/layer_arithmetic.h"

namespace thermocline {

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A denormal number becomes a zero of its sign.
inline float Flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// The number of bf16 nearest to `value`, of two the even one.
inline float RoundedToBf16(float value) {
  if (std::isnan(value)) return NAN;
  const uint32_t bits = BitsOfFloat(Flushed(value));
  return FloatOfBits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}

// One step of a chain: the exact a b + sum is rounded once.
inline float Bf16Step(float a, float b, float sum) { return Flushed(std::fma(a, b, Flushed(sum))); }

// Whether both are the same bits, or both are NaNs.
inline bool SameNumber(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || BitsOfFloat(a) == BitsOfFloat(b);
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TESTING_BF16_ARITHMETIC_H_
