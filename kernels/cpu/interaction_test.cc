#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

struct Shape {
  int32_t batch, vectors, dim;
  int32_t columns() const { return dim + vectors * (vectors - 1) / 2; }
  // One sample stands alone, without padding: nothing may be written after it.
  int64_t ld() const { return batch == 1 ? columns() : PaddedColumns(columns()) + 8; }
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{1, 1, 1}, {257, 27, 16}, {5, 9, 16}, {4, 30, 16}, {2, 4, 16},
                               {3, 5, 3}, {2, 12, 32},   {2, 3, 40}, {0, 3, 16},  {0, 27, 128}};
  for (int32_t dim : {1, 8, 16, 17, 24, 32, 48, 64, 128, 256}) {
    for (int32_t vectors : {1, 2, 3, 7, 27}) {
      shapes.push_back({1, vectors, dim});
      shapes.push_back({33, vectors, dim});
    }
  }
  return shapes;
}

// Random, but for the first sample: the dots of its first two vectors are sums of negative zeros.
std::vector<float> RandomVectors(std::mt19937_64* rng, const Shape& s) {
  std::vector<float> z = RandomFloats(rng, s.batch * s.vectors * s.dim);
  if (s.batch > 0 && s.vectors > 1) {
    std::fill_n(z.begin(), s.dim, -1.0f);
    std::fill_n(z.begin() + s.dim, s.dim, 0.0f);
  }
  return z;
}

std::vector<float> Forward(const Shape& s, std::vector<float> z, int threads) {
  constexpr int kPastEnd = 8;
  ThreadPool pool(threads);
  std::vector<float> out(s.batch * s.ld() + kPastEnd, 77);
  CpuInteractionForward(FloatMatrix(z.data(), s.batch, s.vectors * s.dim), s.vectors,
                        FloatMatrix(out.data(), s.batch, s.columns(), s.ld()), &pool);
  for (int i = 0; i < kPastEnd; ++i) EXPECT_EQ(out[s.batch * s.ld() + i], 77);
  return out;
}

std::vector<float> Backward(const Shape& s, std::vector<float> z, std::vector<float> gradient,
                            int threads) {
  ThreadPool pool(threads);
  std::vector<float> out(z.size(), 77);
  CpuInteractionBackward(FloatMatrix(z.data(), s.batch, s.vectors * s.dim), s.vectors,
                         FloatMatrix(gradient.data(), s.batch, s.columns(), s.ld()),
                         FloatMatrix(out.data(), s.batch, s.vectors * s.dim), &pool);
  return out;
}

float Dot16Lanes(const float* a, const float* b, int32_t dim) {
  float lanes[16] = {-0.f, -0.f, -0.f, -0.f, -0.f, -0.f, -0.f, -0.f,
                     -0.f, -0.f, -0.f, -0.f, -0.f, -0.f, -0.f, -0.f};
  for (int32_t d = 0; d < dim; ++d) lanes[d % 16] += a[d] * b[d];
  for (int half : {8, 4, 2, 1}) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

TEST(InteractionTest, ForwardHasTheCanonicalBits) {
  std::mt19937_64 rng(TestSeed());
  for (const Shape& s : Shapes()) {
    const std::vector<float> z = RandomVectors(&rng, s);
    for (int threads : {1, 2, 4}) {
      const std::vector<float> out = Forward(s, z, threads);
      for (int32_t b = 0; b < s.batch; ++b) {
        const float* zb = &z[b * s.vectors * s.dim];
        std::vector<float> expected(zb, zb + s.dim);
        for (int32_t i = 1; i < s.vectors; ++i) {
          for (int32_t j = 0; j < i; ++j) {
            expected.push_back(Dot16Lanes(zb + i * s.dim, zb + j * s.dim, s.dim));
          }
        }
        expected.resize(s.ld(), 77);  // Other columns are as they were.
        ASSERT_EQ(std::memcmp(&out[b * s.ld()], expected.data(), s.ld() * sizeof(float)), 0)
            << s.vectors << " vectors of " << s.dim << ", sample " << b;
      }
    }
  }
}

TEST(InteractionTest, BackwardIsOneChainInTheOrderOfTheVectors) {
  std::mt19937_64 rng(TestSeed());
  for (const Shape& s : Shapes()) {
    const std::vector<float> z = RandomVectors(&rng, s);
    const std::vector<float> gradient = RandomFloats(&rng, s.batch * s.ld());
    for (int threads : {1, 2, 4}) {
      const std::vector<float> out = Backward(s, z, gradient, threads);
      for (int32_t b = 0; b < s.batch; ++b) {
        const float* zb = &z[b * s.vectors * s.dim];
        const float* gb = &gradient[b * s.ld()];
        for (int32_t i = 0; i < s.vectors; ++i) {
          for (int32_t d = 0; d < s.dim; ++d) {
            float chain = i == 0 ? gb[d] : 0.0f;
            for (int32_t j = 0; j < s.vectors; ++j) {
              if (j == i) continue;
              const int32_t high = std::max(i, j), low = std::min(i, j);
              chain = std::fma(gb[s.dim + high * (high - 1) / 2 + low], zb[j * s.dim + d], chain);
            }
            const float* got = &out[(b * s.vectors + i) * s.dim + d];
            ASSERT_EQ(std::memcmp(got, &chain, sizeof(float)), 0)
                << s.vectors << " vectors of " << s.dim << ", vector " << i;
          }
        }
      }
    }
  }
}

TEST(InteractionTest, BackwardAgreesWithFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  for (const Shape& s : {Shape{2, 7, 16}, Shape{2, 5, 3}, Shape{1, 2, 20}}) {
    std::vector<float> z = RandomFloats(&rng, s.batch * s.vectors * s.dim);
    const std::vector<float> weight = RandomFloats(&rng, s.batch * s.ld());
    const auto loss = [&] {
      const std::vector<float> out = Forward(s, z, 1);
      double sum = 0;
      for (int32_t b = 0; b < s.batch; ++b) {
        for (int32_t c = 0; c < s.columns(); ++c) {
          sum += static_cast<double>(out[b * s.ld() + c]) * weight[b * s.ld() + c];
        }
      }
      return sum;
    };
    const std::vector<float> gradient = Backward(s, z, weight, 2);
    for (size_t i = 0; i < z.size(); ++i) {
      // The loss is quadratic in z, and linear in one number of it: a large step is exact.
      const float kept = z[i];
      z[i] = kept + 0.5f;
      const double up = loss();
      z[i] = kept - 0.5f;
      const double down = loss();
      z[i] = kept;
      ASSERT_NEAR(gradient[i], up - down, 1e-5) << s.vectors << " vectors of " << s.dim;
    }
  }
}

}  // namespace
}  // namespace thermocline
