#include "kernels/cpu/bf16_gemm.h"

#include <xmmintrin.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/bf16_check.h"
#include "kernels/layer_arithmetic.h"
#include "kernels/testing/bf16_arithmetic.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

struct Isa {
  const char* name;
  Bf16GemmFunction gemm;
};

std::vector<Isa> Isas() {
  std::vector<Isa> isas = {{"avx2", Bf16GemmAvx2}};
  if (HasAvx512Bf16()) isas.push_back({"avx512", Bf16GemmAvx512});
  return isas;
}

// A matrix of floats, [rows, columns], and of the same numbers in pairs.
struct TestMatrix {
  int64_t rows, columns;
  std::vector<float> values;
  std::vector<Bf16Pair> row_pairs, column_pairs;

  // The numbers are rounded to bf16.
  TestMatrix(std::vector<float> floats, int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        values(std::move(floats)),
        row_pairs(PackedElements(NumPairs(rows), columns)),
        column_pairs(PackedElements(rows, NumPairs(columns))) {
    for (float& value : values) value = RoundedToBf16(value);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const uint32_t half = BitsOfFloat(values[r * columns + c]) >> 16;
        const auto add = [half](Bf16Pair* pair, int64_t of) {
          *pair |= of % 2 == 0 ? half << 16 : half;
        };
        add(PackedView(row_pairs.data(), NumPairs(rows)).At(r / 2, c), r);
        add(PackedView(column_pairs.data(), rows).At(r, c / 2), c);
      }
    }
  }
  PanelView<const Bf16Pair> RowPairs() const {
    return PackedView(row_pairs.data(), NumPairs(rows));
  }
  PanelView<const Bf16Pair> ColumnPairs() const { return PackedView(column_pairs.data(), rows); }
  float operator()(int64_t r, int64_t c) const { return values[r * columns + c]; }
};

enum class Start { kZero, kBias, kStart };
enum class Finish { kAll, kRelu, kKeep };
enum class Values { kUniform, kTiny };

struct Case {
  int64_t m, n, k;
  bool transposed;
  Start start;
  Finish finish;
  Values values;
};

std::string Name(const Case& c) {
  return absl::StrCat("m ", c.m, " n ", c.n, " k ", c.k, " transposed ", c.transposed, " start ",
                      static_cast<int>(c.start), " finish ", static_cast<int>(c.finish), " values ",
                      static_cast<int>(c.values));
}

class Bf16GemmTest : public testing::Test {
 protected:
  // With kTiny, products are around the least normal number, and some factors are zeros.
  std::vector<float> Factors(int64_t n, Values kind) {
    std::vector<float> values = RandomFloats(&rng_, n);
    if (kind == Values::kUniform) return values;
    for (float& value : values) {
      value = rng_() % 8 == 0 ? std::copysign(0.0f, value)
                              : std::ldexp(value, -56 - static_cast<int>(rng_() % 12));
    }
    return values;
  }
  std::vector<float> Sums(int64_t n, Values kind) {
    std::vector<float> values = RandomFloats(&rng_, n);
    if (kind == Values::kUniform) return values;
    for (float& value : values) value = std::ldexp(value, -122 - static_cast<int>(rng_() % 6));
    return values;
  }

  // Computes a case with `isa`, to c and to pairs, and compares with chains of steps.
  void ExpectChains(const Isa& isa, const Case& c) {
    const TestMatrix a = c.transposed ? TestMatrix(Factors(c.k * c.m, c.values), c.k, c.m)
                                      : TestMatrix(Factors(c.m * c.k, c.values), c.m, c.k);
    const TestMatrix b(Factors(c.k * c.n, c.values), c.k, c.n);
    std::vector<uint64_t> bits(c.m * NumPanels(c.n));
    for (uint64_t& word : bits) word = rng_();
    const std::vector<uint64_t> keeps = bits;
    const std::vector<float> bias = Sums(c.n, c.values), start = Sums(c.m * c.n, c.values);
    const int64_t ld = c.n + 3;
    std::vector<float> result(c.m * ld, kUntouched);
    Bf16GemmCall call;
    call.m = c.m, call.n = c.n, call.k = NumPairs(c.k);
    call.a = c.transposed ? a.RowPairs() : a.ColumnPairs();
    call.a_transposed = c.transposed;
    call.b = b.RowPairs();
    if (c.start == Start::kStart) call.start = RowMajorView(start.data(), c.n);
    if (c.start == Start::kBias) call.bias = bias.data();
    call.relu = c.finish == Finish::kRelu;
    if (c.finish == Finish::kRelu) call.kept = {bits.data(), c.m};
    if (c.finish == Finish::kKeep) call.keeps = {keeps.data(), c.m};
    call.c = RowMajorView(result.data(), ld);
    isa.gemm(call);
    std::vector<float> expected(c.m * c.n);
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        float sum = c.start == Start::kStart  ? start[i * c.n + j]
                    : c.start == Start::kBias ? bias[j]
                                              : 0;
        for (int64_t l = 0; l < c.k; ++l)
          sum = Bf16Step(c.transposed ? a(l, i) : a(i, l), b(l, j), sum);
        if (c.k % 2 == 1) sum = Bf16Step(0, 0, sum);
        if (c.finish == Finish::kRelu && !(sum > 0)) sum = 0;
        if (c.finish == Finish::kKeep && !BitOf(call.keeps, i, j)) sum = 0;
        expected[i * c.n + j] = sum;
        ASSERT_TRUE(SameNumber(result[i * ld + j], sum))
            << isa.name << " " << Name(c) << " at " << i << ", " << j << ": " << result[i * ld + j]
            << ", not " << sum;
      }
      for (int64_t j = c.n; j < ld; ++j) ASSERT_EQ(result[i * ld + j], kUntouched) << Name(c);
    }
    ExpectKept(call, expected, Name(c));
    for (uint64_t& word : bits) word = rng_();
    ExpectPairs(isa, call, TestMatrix(expected, c.m, c.n), Name(c));
    ExpectKept(call, expected, Name(c));
  }

  static bool BitOf(BitsView<const uint64_t> bits, int64_t r, int64_t c) {
    return (*bits.At(r, c / kGemmPanel) >> c % kGemmPanel & 1) != 0;
  }

  // What is positive is so after the rounding, too.
  static void ExpectKept(const Bf16GemmCall& call, const std::vector<float>& expected,
                         const std::string& name) {
    if (call.kept.data == nullptr) return;
    for (int64_t r = 0; r < call.m; ++r) {
      for (int64_t j = 0; j < call.n; ++j) {
        ASSERT_EQ(BitOf(call.kept.AsConst(), r, j), RoundedToBf16(expected[r * call.n + j]) > 0)
            << name << " at " << r << ", " << j;
      }
    }
  }

  // Computes a call to pairs. Beyond the last column there may be zeros or what was there.
  void ExpectPairs(const Isa& isa, Bf16GemmCall call, const TestMatrix& expected,
                   const std::string& name) {
    constexpr Bf16Pair kOld = 0x12345678;
    std::vector<Bf16Pair> row_pairs(expected.row_pairs.size(), kOld);
    std::vector<Bf16Pair> column_pairs(expected.column_pairs.size(), kOld);
    call.c = {};
    call.row_pairs = PackedView(row_pairs.data(), NumPairs(call.m));
    call.column_pairs = PackedView(column_pairs.data(), call.m);
    isa.gemm(call);
    const auto same = [](Bf16Pair got, Bf16Pair wanted) {
      return SameNumber(FloatOfBits(got & 0xFFFF0000), FloatOfBits(wanted & 0xFFFF0000)) &&
             SameNumber(FloatOfBits(got << 16), FloatOfBits(wanted << 16));
    };
    const auto compare = [&](PanelView<const Bf16Pair> got, PanelView<const Bf16Pair> wanted,
                             int64_t rows, int64_t columns) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < NumPanels(columns) * kGemmPanel; ++c) {
          const Bf16Pair pair = *got.At(r, c);
          ASSERT_TRUE(c < columns ? same(pair, *wanted.At(r, c)) : pair == 0 || pair == kOld)
              << isa.name << " " << name << " at " << r << ", " << c << ": " << std::hex << pair
              << ", not " << *wanted.At(r, c);
        }
      }
    };
    compare(call.row_pairs.AsConst(), expected.RowPairs(), NumPairs(call.m), call.n);
    compare(call.column_pairs.AsConst(), expected.ColumnPairs(), call.m, NumPairs(call.n));
  }

  std::mt19937_64 rng_{TestSeed()};
};

TEST_F(Bf16GemmTest, EveryElementIsOneChain) {
  const int64_t shapes[][3] = {{1, 1, 1},    {3, 2, 5},     {7, 16, 13},   {12, 64, 64},
                               {13, 65, 70}, {6, 33, 129},  {25, 100, 3},  {70, 17, 9},
                               {5, 48, 600}, {130, 40, 13}, {14, 129, 130}};
  for (const Isa& isa : Isas()) {
    for (const auto& [m, n, k] : shapes) {
      for (int i = 0; i < 36; ++i) {
        ExpectChains(isa, {m, n, k, i % 2 == 1, static_cast<Start>(i / 2 % 3),
                           static_cast<Finish>(i / 6 % 3), static_cast<Values>(i / 18)});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Infinities and NaNs stay in their chains, and zeros beyond the last column are zeros.
TEST_F(Bf16GemmTest, InfinitiesAndNansStayWhereTheyAre) {
  for (const Isa& isa : Isas()) {
    std::vector<float> a = RandomFloats(&rng_, 5 * 7), b = RandomFloats(&rng_, 7 * 9);
    a[1 * 7 + 2] = INFINITY;
    a[3 * 7 + 6] = NAN;
    b[4 * 9 + 8] = -INFINITY;
    const TestMatrix left(a, 5, 7), right(b, 7, 9);
    std::vector<float> expected(5 * 9);
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t j = 0; j < 9; ++j) {
        float& sum = expected[i * 9 + j];
        for (int64_t l = 0; l < 7; ++l) sum = Bf16Step(left(i, l), right(l, j), sum);
      }
    }
    Bf16GemmCall call;
    call.m = 5, call.n = 9, call.k = 4;
    call.a = left.ColumnPairs();
    call.b = right.RowPairs();
    ExpectPairs(isa, call, TestMatrix(expected, 5, 9), "");
  }
}

TEST_F(Bf16GemmTest, RoundsToNearestEven) {
  std::vector<float> hard = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, FloatOfBits(0x7F800001)};
  for (const uint32_t high : {0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x3F80, 0x3F81, 0x7F7F}) {
    for (const uint32_t low : {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF}) {
      hard.push_back(FloatOfBits(high << 16 | low));
      hard.push_back(FloatOfBits(0x80000000 | high << 16 | low));
    }
  }
  EXPECT_EQ(BitsOfFloat(RoundedToBf16(std::ldexp(1.0f, -127))), 0u)
      << "a number of bf16, but denormal";
  EXPECT_EQ(BitsOfFloat(RoundedToBf16(FloatOfBits(0x3F808000))), 0x3F800000u);
  EXPECT_EQ(BitsOfFloat(RoundedToBf16(FloatOfBits(0x3F818000))), 0x3F820000u);
  EXPECT_EQ(RoundedToBf16(FloatOfBits(0x7F7FFFFF)), INFINITY);
  for (const Isa& isa : Isas()) {
    for (const int64_t columns : {1, 6, 17, 51}) {
      const int64_t rows = static_cast<int64_t>(hard.size()) / columns;
      const PanelView<const float> x = RowMajorView<const float>(hard.data(), columns);
      const std::vector<float> values(hard.begin(), hard.begin() + rows * columns);
      ExpectPairs(isa, RoundingCall(x, rows, columns), TestMatrix(values, rows, columns), "hard");
    }
  }
}

TEST_F(Bf16GemmTest, LeavesTheModeOfFloatsAsItWas) {
  for (const Isa& isa : Isas()) {
    const unsigned mode = _mm_getcsr() & ~_MM_EXCEPT_MASK;
    ExpectChains(isa, {3, 5, 7, false, Start::kZero, Finish::kAll, Values::kTiny});
    EXPECT_EQ(_mm_getcsr() & ~_MM_EXCEPT_MASK, mode) << isa.name;
  }
}

// What the check has to find, put behind the right results.
template <typename Change>
void ForFloats(const Bf16GemmCall& call, Change change) {
  Bf16GemmAvx2(call);
  for (int64_t r = 0; call.c.data != nullptr && r < call.m; ++r) {
    for (int64_t j = 0; j < call.n; ++j) change(call, r, j, call.c.At(r, j));
  }
}

// Chains of which each step takes the halves of a pair in this order.
void TakesHalves(std::array<bool, 2> are_high, const Bf16GemmCall& call) {
  const auto half = [](Bf16Pair pair, bool high) {
    return Flushed(FloatOfBits(high ? pair & 0xFFFF0000 : pair << 16));
  };
  ForFloats(call, [&](const Bf16GemmCall& of, int64_t r, int64_t j, float* c) {
    float sum = *of.start.At(r, j);
    for (int64_t l = 0; l < of.k; ++l) {
      for (const bool high : are_high) {
        sum = Bf16Step(half(*of.a.At(r, l), high), half(*of.b.At(l, j), high), sum);
      }
    }
    *c = sum;
  });
}

void IsTheReference(const Bf16GemmCall& call) { TakesHalves({true, false}, call); }
void SwapsTheOrder(const Bf16GemmCall& call) { TakesHalves({false, true}, call); }

void KeepsDenormalSums(const Bf16GemmCall& call) {
  ForFloats(call, [](const Bf16GemmCall& of, int64_t r, int64_t j, float* c) {
    const float start = *of.start.At(r, j);
    if (*c == 0 && std::fpclassify(start) == FP_SUBNORMAL) *c = start;
  });
}

void TakesInfinitiesForNans(const Bf16GemmCall& call) {
  ForFloats(call, [](const Bf16GemmCall&, int64_t, int64_t, float* c) {
    if (std::isinf(*c)) *c = NAN;
  });
}

template <typename Change>
void ForPairs(const Bf16GemmCall& call, Change change) {
  Bf16GemmAvx2(call);
  if (call.row_pairs.data == nullptr) return;
  for (int64_t r = 0; r < call.m; r += 2) {
    for (int64_t j = 0; j < call.n; ++j) {
      change(BitsOfFloat(*call.start.At(r, j)), call.row_pairs.At(r / 2, j));
    }
  }
}

void RoundsTiesUp(const Bf16GemmCall& call) {
  ForPairs(call, [](uint32_t bits, Bf16Pair* pair) {
    if ((bits & 0x1FFFF) == 0x8000 && (bits & 0x7F800000) != 0) *pair += 0x10000;
  });
}

void RoundsDenormals(const Bf16GemmCall& call) {
  ForPairs(call, [](uint32_t bits, Bf16Pair* pair) {
    if ((bits & 0x7FFFFFFF) == 0x00400000) *pair |= 0x00400000;
  });
}

void CutsNans(const Bf16GemmCall& call) {
  ForPairs(call, [](uint32_t bits, Bf16Pair* pair) {
    if (bits == 0x7F800001) *pair &= 0xFFBFFFFF;
  });
}

TEST_F(Bf16GemmTest, TheCheckFindsWhatDiffers) {
  EXPECT_EQ(CheckBf16Gemm(IsTheReference), absl::OkStatus());
  for (const Isa& isa : Isas()) EXPECT_EQ(CheckBf16Gemm(isa.gemm), absl::OkStatus()) << isa.name;
  const std::pair<const char*, Bf16GemmFunction> broken[] = {
      {"swaps the order", SwapsTheOrder},     {"keeps denormal sums", KeepsDenormalSums},
      {"infinities", TakesInfinitiesForNans}, {"rounds ties up", RoundsTiesUp},
      {"rounds denormals", RoundsDenormals},  {"cuts NaNs", CutsNans}};
  for (const auto& [name, gemm] : broken) {
    const absl::Status status = CheckBf16Gemm(gemm);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_TRUE(absl::StrContains(status.message(), "bf16 instructions of this CPU")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), ", where fused multiply-adds compute "))
        << status;
  }
}

// What stands for a CPU whose fused multiply-adds differ: nothing is compared with them alone.
TEST_F(Bf16GemmTest, TheCheckFindsWhatFusedMultiplyAddsComputeOtherwise) {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | _MM_ROUND_TOWARD_ZERO);
  const absl::Status status = CheckBf16Gemm(Bf16GemmAvx2);
  _mm_setcsr(mode);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "the fused multiply-adds of this CPU")) << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "; number ")) << status;
}

}  // namespace
}  // namespace thermocline
