// The arithmetic of layers' operations (layer_operations.h), element by element, for the CPU and a
// GPU. Float32 operations alone, no libm but sqrt, no branches: compilers vectorize it, and every
// compiler, CPU and GPU computes the same bits. A NaN gives a NaN.
#ifndef THERMOCLINE_KERNELS_LAYER_ARITHMETIC_H_
#define THERMOCLINE_KERNELS_LAYER_ARITHMETIC_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/hash.h"
#include "common/base/host_device.h"

namespace thermocline {

inline constexpr uint32_t kSignBit = 0x80000000;

THERMOCLINE_HOST_DEVICE inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

THERMOCLINE_HOST_DEVICE inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns condition ? a : b, by masks. (GCC makes branches of ?: with a constant or a product, and
// then does not vectorize the loop around them.)
THERMOCLINE_HOST_DEVICE inline float Select(bool condition, float a, float b) {
  const uint32_t mask = condition ? 0xffffffff : 0;
  return FloatOfBits((FloatBits(a) & mask) | (FloatBits(b) & ~mask));
}

// Returns the lesser of |x| and `most`; a NaN where x is one.
THERMOCLINE_HOST_DEVICE inline float ClampedMagnitude(float x, float most) {
  const float magnitude = fabsf(x);
  return Select(most < magnitude, most, magnitude);
}

// exp(t) = power * (1 + rest), power = 2^n, |log(1 + rest)| <= ln 2 / 2. `rest` has a small
// relative error, so that exp(t) - 1 = power * rest + (power - 1) has one near 0, too.
struct ScaledExp {
  float power, rest;
};

struct ExpConstants {
  static constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts; the first has 10 bits, so that its product with n is exact.
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  // A number of this size has no bits behind the point, and its low bits count: n + kRound is t /
  // ln 2 rounded, and holds n in its bits.
  static constexpr float kRound = 12582912;  // 1.5 * 2^23
  // The Taylor series, from r^7 / 7! down.
  static constexpr float k7 = 1.0f / 5040, k6 = 1.0f / 720, k5 = 1.0f / 120, k4 = 1.0f / 24;
  static constexpr float k3 = 1.0f / 6, k2 = 0.5f;
};

// REQUIRES: -87 <= t <= 0, or t is a NaN
THERMOCLINE_HOST_DEVICE inline ScaledExp ScaledExpOf(float t) {
  using C = ExpConstants;
  const float rounded = t * C::kLog2E + C::kRound;
  const float n = rounded - C::kRound;
  const float r = (t - n * C::kLn2High) - n * C::kLn2Low;
  float p = C::k7;
  p = p * r + C::k6;
  p = p * r + C::k5;
  p = p * r + C::k4;
  p = p * r + C::k3;
  p = p * r + C::k2;
  return {FloatOfBits((FloatBits(rounded) + 127) << 23), p * (r * r) + r};
}

// Lesser exponents count as this one. exp(-87) is still a normal number.
inline constexpr float kLeastExponent = -87;

// exp(t) for t <= 0.
THERMOCLINE_HOST_DEVICE inline float ExpOfNonPositive(float t) {
  const ScaledExp exp = ScaledExpOf(-ClampedMagnitude(t, -kLeastExponent));
  return exp.power * exp.rest + exp.power;
}

// sigmoid(x) = 1 / (1 + exp(-x))
THERMOCLINE_HOST_DEVICE inline float Sigmoid(float x) {
  const float e = ExpOfNonPositive(-fabsf(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

// tanh(x) = (1 - exp(-2 |x|)) / (1 + exp(-2 |x|)), with the sign of x.
THERMOCLINE_HOST_DEVICE inline float Tanh(float x) {
  constexpr float kMost = 10;  // From here on tanh is 1, rounded.
  const ScaledExp exp = ScaledExpOf(-2 * ClampedMagnitude(x, kMost));
  const float e_minus_1 = exp.power * exp.rest + (exp.power - 1);
  const float y = e_minus_1 / (2 + e_minus_1);
  return FloatOfBits((FloatBits(y) & ~kSignBit) | (FloatBits(x) & kSignBit));
}

THERMOCLINE_HOST_DEVICE inline float Relu(float x) { return x > 0 ? x : 0.0f; }
THERMOCLINE_HOST_DEVICE inline float Prelu(float x, float slope) {
  return Select(x > 0, x, slope * x);
}

// Gradients of an activation's input, from its output y or its input x and the gradient of y.
THERMOCLINE_HOST_DEVICE inline float ReluGradient(float y, float y_gradient) {
  return y > 0 ? y_gradient : 0.0f;
}
THERMOCLINE_HOST_DEVICE inline float SigmoidGradient(float y, float y_gradient) {
  return y_gradient * (y * (1 - y));
}
THERMOCLINE_HOST_DEVICE inline float TanhGradient(float y, float y_gradient) {
  return y_gradient * (1 - y * y);
}
THERMOCLINE_HOST_DEVICE inline float PreluGradient(float x, float slope, float y_gradient) {
  return Select(x > 0, y_gradient, slope * y_gradient);
}
THERMOCLINE_HOST_DEVICE inline float PreluSlopeGradient(float x, float y_gradient) {
  return Select(x > 0, 0.0f, x * y_gradient);
}

THERMOCLINE_HOST_DEVICE inline float MeanOf(float sum, int32_t count) {
  return sum / static_cast<float>(count);
}
// 1 / sqrt(variance + epsilon). squares: the sum of the squared distances from the mean
THERMOCLINE_HOST_DEVICE inline float InverseDeviation(float squares, int32_t count, float epsilon) {
  return 1.0f / std::sqrt(MeanOf(squares, count) + epsilon);
}
// The output of layer normalization. scale: 1 / sqrt(variance + epsilon)
THERMOCLINE_HOST_DEVICE inline float LayerNormOf(float x, float mean, float scale, float gain,
                                                 float bias) {
  return (x - mean) * scale * gain + bias;
}
// The gradient of a row's x. gradient: that of its normalized x, times the gain; mean_gradient,
// mean_dot: the means over the row of gradient and of gradient * normalized
THERMOCLINE_HOST_DEVICE inline float LayerNormGradient(float gradient, float normalized,
                                                       float mean_gradient, float mean_dot,
                                                       float scale) {
  return ((gradient - mean_gradient) - normalized * mean_dot) * scale;
}

// What a vector is divided by to have length 1.
THERMOCLINE_HOST_DEVICE inline float LengthOf(float sum_of_squares, float epsilon) {
  const float length = std::sqrt(sum_of_squares);
  return length < epsilon ? epsilon : length;
}
// The share of the normalized vector that its gradient loses: their dot product, or none where the
// divisor is epsilon, a constant.
THERMOCLINE_HOST_DEVICE inline float NormalizeDot(float dot, float divisor, float epsilon) {
  return divisor > epsilon ? dot : 0.0f;
}

// The gradient of one x of a softmax. dot: of all y and their gradients
THERMOCLINE_HOST_DEVICE inline float SoftmaxGradient(float y, float y_gradient, float dot) {
  return y * (y_gradient - dot);
}
// b where a < b, else a.
THERMOCLINE_HOST_DEVICE inline float GreaterOf(float a, float b) { return a < b ? b : a; }

// Gradients of a query and of a step x from those of [query, x, query - x, query * x].
THERMOCLINE_HOST_DEVICE inline float CompareQueryGradient(float x, float of_query,
                                                          float of_difference, float of_product) {
  return (of_query + x * of_product) + of_difference;
}
THERMOCLINE_HOST_DEVICE inline float CompareStepGradient(float query, float of_x,
                                                         float of_difference, float of_product) {
  return (of_x + query * of_product) + (0.0f - of_difference);
}

// What scores of attention are multiplied with. columns: of a head
THERMOCLINE_HOST_DEVICE inline float AttentionScale(int32_t columns) {
  return 1.0f / std::sqrt(static_cast<float>(columns));
}

// The hashes that decide which units dropout keeps. One of 32 bits serves two columns of a group of
// 16: column c and column c + 8.
inline constexpr int kDropoutGroup = 16;

// Returns what the hashes of one sample begin with.
THERMOCLINE_HOST_DEVICE inline uint64_t DropoutRowKey(uint64_t key, int64_t step, int64_t sample) {
  return Mix64(Mix64(key + static_cast<uint64_t>(step)) + static_cast<uint64_t>(sample));
}

// A step of a sequence is a row of its own: what stands in the place of the sample. behind: so many
// steps of the sample come after it, fewer than 2^21
THERMOCLINE_HOST_DEVICE inline int64_t DropoutRowOfStep(int64_t sample, int64_t behind) {
  constexpr int64_t kStepsOfSample = 1 << 21;
  return sample * kStepsOfSample + behind;
}

// word: group * 8 + c, for columns c and c + 8 of a group; their bits are the low and the high 16.
THERMOCLINE_HOST_DEVICE inline uint32_t DropoutBits(uint64_t row_key, uint32_t word) {
  uint32_t h = word * 0x9e3779b9u + static_cast<uint32_t>(row_key);
  h ^= h >> 16;
  h *= 0x21f0aaadu;
  h ^= h >> 15;
  h += static_cast<uint32_t>(row_key >> 32);
  h *= 0x735a2d97u;
  return h ^ h >> 15;
}

// The 16 bits of one column.
THERMOCLINE_HOST_DEVICE inline uint32_t DropoutBitsOfColumn(uint64_t row_key, int32_t column) {
  const int32_t word = column / kDropoutGroup * 8 + column % 8;
  const uint32_t bits = DropoutBits(row_key, static_cast<uint32_t>(word));
  return column % kDropoutGroup < 8 ? bits & 0xffff : bits >> 16;
}

// Returns all ones where the bits of a unit keep it, else 0. (Signed, as vectors compare.)
THERMOCLINE_HOST_DEVICE inline uint32_t DropoutKeeps(uint32_t bits, uint32_t threshold) {
  return static_cast<int32_t>(bits) >= static_cast<int32_t>(threshold) ? 0xffffffff : 0;
}

// keep: as DropoutKeeps returns it
THERMOCLINE_HOST_DEVICE inline float DropoutOf(float x, float scale, uint32_t keep) {
  return FloatOfBits(FloatBits(x * scale) & keep);
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_LAYER_ARITHMETIC_H_
