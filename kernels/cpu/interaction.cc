#include "kernels/cpu/interaction.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/lane_sum.h"

namespace thermocline {
namespace {

constexpr int64_t kInteractionRows = 32;  // of one cell of the grid

// Where the dots of vector i with those before it begin.
constexpr int64_t FirstPair(int64_t i) { return i * (i - 1) / 2; }

void DotsOfSample(const float* z, int32_t vectors, int32_t dim, float* dots) {
  for (int32_t i = 1; i < vectors; ++i) {
    for (int32_t j = 0; j < i; ++j) *dots++ = LaneDot(z + i * dim, z + j * dim, dim);
  }
}

// Products of 16 lanes and the first level of their tree.
inline __m256 FoldedProduct(__m256 low, __m256 high, const float* b) {
  return _mm256_add_ps(_mm256_mul_ps(low, _mm256_loadu_ps(b)),
                       _mm256_mul_ps(high, _mm256_loadu_ps(b + 8)));
}

// Lanes l + (l + 4): [4 lanes of a | 4 lanes of b].
inline __m256 Fold4(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Lanes l + (l + 2), of two dots in a and two in b.
inline __m256 Fold2(__m256 a, __m256 b) {
  const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                       _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

// The dots of a vector (two halves) of dim 16 with `rows`: the same products as LaneDot's, and the
// same tree over them, eight at a time.
inline __m256 EightDots(__m256 low, __m256 high, const float* const rows[8]) {
  __m256 f[8];
  for (int t = 0; t < 8; ++t) f[t] = FoldedProduct(low, high, rows[t]);
  const __m256 q0213 = Fold2(Fold4(f[0], f[1]), Fold4(f[2], f[3]));  // [0 0 2 2 | 1 1 3 3]
  const __m256 q4657 = Fold2(Fold4(f[4], f[5]), Fold4(f[6], f[7]));  // [4 4 6 6 | 5 5 7 7]
  const __m256 sum = _mm256_add_ps(_mm256_shuffle_ps(q0213, q4657, 0x88),
                                   _mm256_shuffle_ps(q0213, q4657, 0xDD));  // [0 2 4 6 | 1 3 5 7]
  return _mm256_permutevar8x32_ps(sum, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// DotsOfSample for dim 16.
void DotsOfSample16(const float* z, int32_t vectors, float* dots) {
  const float* const end = dots + FirstPair(vectors);
  for (int32_t i = 1; i < vectors; dots += i, ++i) {
    const __m256 low = _mm256_loadu_ps(z + i * 16);
    const __m256 high = _mm256_loadu_ps(z + i * 16 + 8);
    for (int32_t j = 0; j < i; j += 8) {
      const float* rows[8];
      for (int32_t t = 0; t < 8; ++t) rows[t] = z + std::min(j + t, i) * 16;
      const __m256 eight = EightDots(low, high, rows);
      if (dots + j + 8 <= end) {
        _mm256_storeu_ps(dots + j, eight);  // What is too much will be overwritten by the next i.
      } else {
        float last[8];
        _mm256_storeu_ps(last, eight);
        std::copy(last, last + (i - j), dots + j);
      }
    }
  }
}

// z_gradient[i] = direct + sum over j of gradient(i, j) z[j], j ascending, as one chain of FMAs.
void GradientOfSample(const float* z, int32_t vectors, int32_t dim, const float* gradient,
                      float* z_gradient) {
  const float* dots = gradient + dim;
  std::memcpy(z_gradient, gradient, dim * sizeof(float));
  std::fill(z_gradient + dim, z_gradient + static_cast<int64_t>(vectors) * dim, 0.0f);
  for (int32_t i = 0; i < vectors; ++i) {
    float* to = z_gradient + static_cast<int64_t>(i) * dim;
    for (int32_t j = 0; j < vectors; ++j) {
      if (j == i) continue;
      const float g = dots[i > j ? FirstPair(i) + j : FirstPair(j) + i];
      const float* from = z + static_cast<int64_t>(j) * dim;
      for (int32_t d = 0; d < dim; ++d) to[d] = std::fma(g, from[d], to[d]);
    }
  }
}

// GradientOfSample for kRows vectors from i on, dim 16.
template <int kRows>
void GradientRows16(const float* z, int32_t vectors, const float* gradient, int32_t i,
                    float* z_gradient) {
  const float* dots = gradient + 16;
  __m256 sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  if (i == 0) {
    sum[0][0] = _mm256_loadu_ps(gradient);
    sum[0][1] = _mm256_loadu_ps(gradient + 8);
  }
  const auto add = [&](int r, int32_t j, const float* g) {
    const __m256 scale = _mm256_broadcast_ss(g);
    sum[r][0] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(z + j * 16), sum[r][0]);
    sum[r][1] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(z + j * 16 + 8), sum[r][1]);
  };
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = dots + FirstPair(i + r);
  for (int32_t j = 0; j < i; ++j) {
    for (int r = 0; r < kRows; ++r) add(r, j, rows[r] + j);
  }
  for (int32_t j = i; j < i + kRows; ++j) {
    for (int r = 0; r < kRows; ++r) {
      if (j != i + r) add(r, j, j < i + r ? rows[r] + j : rows[j - i] + i + r);
    }
  }
  for (int32_t j = i + kRows; j < vectors; ++j) {
    const float* column = dots + FirstPair(j) + i;
    for (int r = 0; r < kRows; ++r) add(r, j, column + r);
  }
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(z_gradient + (i + r) * 16, sum[r][0]);
    _mm256_storeu_ps(z_gradient + (i + r) * 16 + 8, sum[r][1]);
  }
}

void GradientOfSample16(const float* z, int32_t vectors, const float* gradient, float* z_gradient) {
  int32_t i = 0;
  for (; i + 6 <= vectors; i += 6) GradientRows16<6>(z, vectors, gradient, i, z_gradient);
  for (; i + 3 <= vectors; i += 3) GradientRows16<3>(z, vectors, gradient, i, z_gradient);
  for (; i < vectors; ++i) GradientRows16<1>(z, vectors, gradient, i, z_gradient);
}

}  // namespace

void CpuInteractionForward(Matrix z, int32_t vectors, Matrix output, ThreadPool* pool) {
  const int32_t dim = z.cols / vectors;
  CHECK_EQ(z.cols, vectors * dim);
  CHECK_EQ(output.cols, dim + FirstPair(vectors));
  pool->ParallelFor((z.rows + kInteractionRows - 1) / kInteractionRows, [&](int64_t cell, int) {
    const int64_t end = std::min<int64_t>((cell + 1) * kInteractionRows, z.rows);
    for (int64_t b = cell * kInteractionRows; b < end; ++b) {
      std::memcpy(output.row(b), z.row(b), dim * sizeof(float));
      if (dim == 16) {
        DotsOfSample16(z.row(b), vectors, output.row(b) + dim);
      } else {
        DotsOfSample(z.row(b), vectors, dim, output.row(b) + dim);
      }
      std::fill(output.row(b) + output.cols, output.row(b) + output.ld, 0.0f);
    }
  });
}

void CpuInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient, Matrix z_gradient,
                            ThreadPool* pool) {
  const int32_t dim = z.cols / vectors;
  CHECK_EQ(output_gradient.cols, dim + FirstPair(vectors));
  pool->ParallelFor((z.rows + kInteractionRows - 1) / kInteractionRows, [&](int64_t cell, int) {
    const int64_t end = std::min<int64_t>((cell + 1) * kInteractionRows, z.rows);
    for (int64_t b = cell * kInteractionRows; b < end; ++b) {
      if (dim == 16) {
        GradientOfSample16(z.row(b), vectors, output_gradient.row(b), z_gradient.row(b));
      } else {
        GradientOfSample(z.row(b), vectors, dim, output_gradient.row(b), z_gradient.row(b));
      }
    }
  });
}

}  // namespace thermocline
