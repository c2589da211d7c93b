#include "kernels/cpu/gemm.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

struct Isa {
  const char* name;
  GemmFunction gemm;
};

std::vector<Isa> Isas() {
  std::vector<Isa> isas = {{"avx2", GemmAvx2}};
  if (HasAvx512()) isas.push_back({"avx512", GemmAvx512});
  return isas;
}

struct Shape {
  int64_t m, n, k;
};

// A matrix in either layout, and its row-major copy.
struct TestMatrix {
  int64_t rows, columns;
  std::vector<float> row_major, stored;
  bool packed;

  TestMatrix(std::mt19937_64* rng, int64_t rows, int64_t columns, bool packed)
      : rows(rows),
        columns(columns),
        row_major(RandomFloats(rng, rows * columns)),
        stored(packed ? PackedElements(rows, columns) : rows * (columns + 3), 0.0f),
        packed(packed) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) *View().At(r, c) = row_major[r * columns + c];
    }
  }
  PanelView<float> View() {
    return packed ? PackedView(stored.data(), rows) : RowMajorView(stored.data(), columns + 3);
  }
  float operator()(int64_t r, int64_t c) const { return row_major[r * columns + c]; }
};

enum class Start { kZero, kBias, kAccumulate };
enum class Finish { kAll, kRelu, kKeep };

// One call against chains of fused multiply-adds, bit by bit.
void ExpectChains(const Isa& isa, const Shape& shape, bool transposed, bool packed, Start start,
                  Finish finish, std::mt19937_64* rng) {
  TestMatrix a(rng, transposed ? shape.k : shape.m, transposed ? shape.m : shape.k, packed);
  TestMatrix b(rng, shape.k, shape.n, true);
  TestMatrix c(rng, shape.m, shape.n, packed);
  std::vector<uint64_t> bits(shape.m * NumPanels(shape.n));
  for (uint64_t& word : bits) word = (*rng)();
  const std::vector<uint64_t> keeps = bits;
  const std::vector<float> bias = RandomFloats(rng, shape.n);
  if (packed) {  // What lies beyond column n stays as it is.
    for (int64_t r = 0; r < shape.m; ++r) {
      for (int64_t j = shape.n; j < NumPanels(shape.n) * kGemmPanel; ++j) {
        *c.View().At(r, j) = kUntouched;
      }
    }
  }
  GemmCall call;
  call.m = shape.m, call.n = shape.n, call.k = shape.k;
  call.a = a.View().AsConst();
  call.a_transposed = transposed;
  call.b = b.View().AsConst();
  call.c = c.View();
  if (start == Start::kAccumulate) call.start = c.View().AsConst();
  if (start == Start::kBias) call.bias = bias.data();
  call.relu = finish == Finish::kRelu;
  if (finish == Finish::kRelu) call.kept = {bits.data(), shape.m};
  if (finish == Finish::kKeep) call.keeps = {keeps.data(), shape.m};
  isa.gemm(call);

  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float chain = start == Start::kAccumulate ? c(i, j) : start == Start::kBias ? bias[j] : 0;
      for (int64_t l = 0; l < shape.k; ++l) {
        chain = std::fma(transposed ? a(l, i) : a(i, l), b(l, j), chain);
      }
      if (finish == Finish::kRelu && !(chain > 0)) chain = 0;
      const auto bit_of = [&](const std::vector<uint64_t>& words) {
        return words[j / kGemmPanel * shape.m + i] >> j % kGemmPanel & 1;
      };
      if (finish == Finish::kRelu) {
        ASSERT_EQ(bit_of(bits), chain > 0 ? 1 : 0);
      }
      if (finish == Finish::kKeep && bit_of(keeps) == 0) chain = 0;
      ASSERT_EQ(*c.View().At(i, j), chain)
          << isa.name << " m " << shape.m << " n " << shape.n << " k " << shape.k << " transposed "
          << transposed << " packed " << packed << " at " << i << ", " << j;
    }
    for (int64_t j = shape.n; packed && j < NumPanels(shape.n) * kGemmPanel; ++j) {
      ASSERT_EQ(*c.View().At(i, j), kUntouched);
    }
  }
}

TEST(GemmTest, EveryElementIsOneChain) {
  std::mt19937_64 rng(TestSeed());
  const std::vector<Shape> shapes = {{1, 1, 1},    {3, 2, 5},     {7, 16, 13},  {12, 64, 64},
                                     {13, 65, 70}, {6, 33, 129},  {25, 100, 3}, {70, 17, 9},
                                     {5, 48, 600}, {130, 40, 513}};
  for (const Isa& isa : Isas()) {
    for (const Shape& shape : shapes) {
      for (int variant = 0; variant < 36; ++variant) {
        ExpectChains(isa, shape, variant % 2 == 1, variant / 2 % 2 == 1,
                     static_cast<Start>(variant / 4 % 3), static_cast<Finish>(variant / 12), &rng);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(GemmTest, NoStepsLeaveTheStart) {
  for (const Isa& isa : Isas()) {
    std::vector<float> c(4, kUntouched), unused(kGemmPanel);
    GemmCall call;
    call.m = 2, call.n = 2, call.k = 0;
    call.a = RowMajorView<const float>(unused.data(), 8);
    call.b = PackedView<const float>(unused.data(), 1);
    call.c = RowMajorView(c.data(), 2);
    isa.gemm(call);
    EXPECT_EQ(c, std::vector<float>(4, 0.0f)) << isa.name;
  }
}

TEST(PackTest, PanelsHoldTheMatrixAndZeros) {
  std::mt19937_64 rng(TestSeed());
  for (const auto& [k, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {9, 64}, {16, 65}, {33, 100}, {100, 7}, {17, 130}}) {
    const int64_t ld = n + 5, transposed_ld = k + 2;
    const std::vector<float> b = RandomFloats(&rng, k * ld);
    std::vector<float> b_transposed(n * transposed_ld);
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) b_transposed[j * transposed_ld + l] = b[l * ld + j];
    }
    for (int64_t panel = 0; panel < NumPanels(n); ++panel) {
      std::vector<float> packed(k * kGemmPanel, kUntouched), from_transposed = packed;
      PackPanel(b.data(), ld, k, n, panel, packed.data());
      PackPanelTransposed(b_transposed.data(), transposed_ld, k, n, panel, from_transposed.data());
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t j = 0; j < kGemmPanel; ++j) {
          const int64_t column = panel * kGemmPanel + j;
          const float expected = column < n ? b[l * ld + column] : 0;
          ASSERT_EQ(packed[l * kGemmPanel + j], expected) << k << " x " << n;
          ASSERT_EQ(from_transposed[l * kGemmPanel + j], expected) << k << " x " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace thermocline
