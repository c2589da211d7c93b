#include "kernels/cpu/bf16_check.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

// The shape of the calls of CheckBf16Gemm.
constexpr int64_t kRows = 4, kColumns = kGemmPanel, kMaxPairs = 3;
constexpr int kCheckedCalls = 128;
// The CRC-32C of what they compute. A new one is due where the calls change, and only there.
constexpr uint32_t kRightResults = 0x63728AA5;

// bf16: zeros, denormal numbers, the least normal ones, numbers whose products are denormal or
// the least normal, ones with and without a fraction, and the greatest.
constexpr uint16_t kHardFactors[] = {0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x8080, 0x0081,
                                     0x1FC0, 0x2000, 0xA001, 0x2008, 0x1F80, 0x3F80, 0xBF80,
                                     0x3F81, 0x3FFF, 0x4B00, 0x3B80, 0x7F7F, 0xFF7F};
// float32: the same, and what lies just below, at and above the middle of two numbers of bf16.
constexpr uint32_t kHardSums[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00400000, 0x007FFFFF, 0x807FFFFF, 0x00800000,
    0x80800000, 0x00800001, 0x00807FFF, 0x00808000, 0x00818000, 0x3F800000, 0xBF800000, 0x3F800001,
    0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F817FFF, 0x3F818000, 0x3F818001, 0xBF818000, 0x4B800000,
    0x4B7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0xFF7FFFFF};
// Infinities and NaNs, of which some are signaling or become infinities when their low half is cut.
constexpr uint16_t kSpecialFactors[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F81};
constexpr uint32_t kSpecialSums[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFF80FFFF};

// The operands of a call, and what it computes.
struct HardCall {
  int64_t k = 0;
  std::vector<Bf16Pair> a = std::vector<Bf16Pair>(PackedElements(kRows, kMaxPairs));
  std::vector<Bf16Pair> b = std::vector<Bf16Pair>(PackedElements(kMaxPairs, kColumns));
  std::vector<float> start = std::vector<float>(kRows * kColumns);

  // The bits of c, then of both kinds of pairs of `start`, as floats; one NaN stands for all.
  std::vector<uint32_t> Compute(Bf16GemmFunction gemm) const {
    std::vector<float> c(kRows * kColumns);
    Bf16GemmCall product;
    product.m = kRows;
    product.n = kColumns;
    product.k = k;
    product.a = PackedView(a.data(), kRows);
    product.b = PackedView(b.data(), k);
    product.start = RowMajorView(start.data(), kColumns);
    product.c = RowMajorView(c.data(), kColumns);
    gemm(product);
    std::vector<Bf16Pair> row_pairs(PackedElements(NumPairs(kRows), kColumns));
    std::vector<Bf16Pair> column_pairs(PackedElements(kRows, NumPairs(kColumns)));
    Bf16GemmCall rounding = RoundingCall(product.start, kRows, kColumns);
    rounding.row_pairs = PackedView(row_pairs.data(), NumPairs(kRows));
    rounding.column_pairs = PackedView(column_pairs.data(), kRows);
    gemm(rounding);
    for (const std::vector<Bf16Pair>& pairs : {row_pairs, column_pairs}) {
      for (const Bf16Pair pair : pairs) {
        c.push_back(FloatOfBits(pair & 0xFFFF0000));
        c.push_back(FloatOfBits(pair << 16));
      }
    }
    std::vector<uint32_t> bits;
    for (const float number : c) {
      bits.push_back(std::isnan(number) ? 0x7FC00000 : FloatBits(number));
    }
    return bits;
  }
};

class HardCalls {
 public:
  HardCall Next() {
    HardCall call;
    call.k = 1 + calls_ % kMaxPairs;
    const bool has_special = calls_++ % 8 == 0;
    for (Bf16Pair& pair : call.a) pair = Pair(has_special);
    for (Bf16Pair& pair : call.b) pair = Pair(has_special);
    for (float& sum : call.start) sum = FloatOfBits(Sum(has_special));
    return call;
  }

 private:
  // Each number is drawn by a statement of its own: compilers choose the order within one.
  Bf16Pair Pair(bool may_be_special) {
    const uint32_t high = Factor(may_be_special);
    return high << 16 | Factor(may_be_special);
  }
  template <typename T, size_t kSize>
  T Any(const T (&of)[kSize]) {
    return of[random_() % kSize];
  }
  uint32_t Factor(bool may_be_special) {
    if (may_be_special && random_() % 8 == 0) return Any(kSpecialFactors);
    if (random_() % 2 == 0) return Any(kHardFactors);
    // Products are around the least normal number, 2^-126: exponents are -63, more or less.
    const uint32_t sign = random_() % 2, exponent = 56 + random_() % 16;
    return sign << 15 | exponent << 7 | random_() % 128;
  }
  uint32_t Sum(bool may_be_special) {
    if (may_be_special && random_() % 8 == 0) return Any(kSpecialSums);
    if (random_() % 2 == 0) return Any(kHardSums);
    const uint32_t sign = random_() % 2, exponent = random_() % 8;
    return sign << 31 | exponent << 23 | random_() % (1 << 23);
  }

  int calls_ = 0;
  std::minstd_rand random_{1};
};

// What `gemm` computes otherwise than Bf16GemmAvx2 first, for a person to look into; "": nothing.
std::string FirstDifference(Bf16GemmFunction gemm) {
  HardCalls calls;
  for (int i = 0; i < kCheckedCalls; ++i) {
    const HardCall call = calls.Next();
    const std::vector<uint32_t> avx2 = call.Compute(Bf16GemmAvx2), got = call.Compute(gemm);
    for (size_t j = 0; j < got.size(); ++j) {
      if (got[j] == avx2[j]) continue;
      return absl::StrFormat("; number %d of call %d is %a, where fused multiply-adds compute %a",
                             j, i, FloatOfBits(got[j]), FloatOfBits(avx2[j]));
    }
  }
  return "";
}

}  // namespace

absl::Status CheckBf16Gemm(Bf16GemmFunction gemm) {
  HardCalls calls;
  uint32_t results = 0;
  for (int i = 0; i < kCheckedCalls; ++i) {
    const std::vector<uint32_t> bits = calls.Next().Compute(gemm);
    results = ExtendCrc32c(results, bits.data(), bits.size() * sizeof(uint32_t));
  }
  if (results == kRightResults) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the %s of this CPU do not compute what those of others do (the results of a test have the "
      "CRC-32C %08x, not %08x%s)",
      gemm == Bf16GemmAvx2 ? "fused multiply-adds" : "bf16 instructions", results, kRightResults,
      FirstDifference(gemm)));
}

}  // namespace thermocline
