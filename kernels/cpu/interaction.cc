#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/base/check.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/lane_sum.h"

namespace thermocline {
namespace {

constexpr int64_t kInteractionRows = 32;  // Rows of one cell of the grid.

// The place of the first dot product of vector i with those before it.
constexpr int64_t FirstPair(int64_t i) { return i * (i - 1) / 2; }

// The vectors of one sample, each with numbers behind it up to a multiple of 16, where their dim is
// none.
class WholeLanes {
 public:
  // `filler` is the number behind each vector.
  WholeLanes(int32_t vectors, int32_t dim, float filler)
      : vectors_(vectors), dim_(dim), padded_(PaddedDim(dim)) {
    if (dim_ != padded_) padded_vectors_.assign(int64_t{vectors} * padded_, filler);
  }

  static int32_t PaddedDim(int32_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

  // [vectors, padded dim] with what `z` [vectors, dim] has; `z` itself where nothing is missing.
  const float* Of(const float* z) {
    if (dim_ == padded_) return z;
    for (int32_t i = 0; i < vectors_; ++i) {
      std::memcpy(&padded_vectors_[int64_t{i} * padded_], z + int64_t{i} * dim_,
                  dim_ * sizeof(float));
    }
    return padded_vectors_.data();
  }

 private:
  const int32_t vectors_, dim_, padded_;
  std::vector<float> padded_vectors_;
};

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

// Eight of the 16 lanes of rows[r] . columns[c], which begin with the pointers, in lanes[c][r].
template <int kDim>
inline void EightLanes(const float* const rows[2], const float* const columns[4], int32_t dim,
                       __m256 lanes[4][2]) {
  const auto product = [&](int c, int r, int32_t d) {
    return _mm256_mul_ps(_mm256_loadu_ps(rows[r] + d), _mm256_loadu_ps(columns[c] + d));
  };
  for (int c = 0; c < 4; ++c) {
    for (int r = 0; r < 2; ++r) lanes[c][r] = product(c, r, 0);
  }
  for (int32_t d = kLanes; d < (kDim > 0 ? kDim : dim); d += kLanes) {
    for (int c = 0; c < 4; ++c) {
      for (int r = 0; r < 2; ++r) lanes[c][r] = _mm256_add_ps(lanes[c][r], product(c, r, d));
    }
  }
}

// The dots of two rows with four columns: [4 of rows[0] | 4 of rows[1]]. The same products as
// LaneDot's, the same sums of them and the same tree.
template <int kDim>
inline __m256 EightDots(const float* const rows[2], const float* const columns[4], int32_t dim) {
  const float* const upper_rows[2] = {rows[0] + 8, rows[1] + 8};
  const float* const upper_columns[4] = {columns[0] + 8, columns[1] + 8, columns[2] + 8,
                                         columns[3] + 8};
  __m256 f[4][2], upper[4][2];
  EightLanes<kDim>(rows, columns, dim, f);
  EightLanes<kDim>(upper_rows, upper_columns, dim, upper);
  for (int c = 0; c < 4; ++c) {
    for (int r = 0; r < 2; ++r) f[c][r] = _mm256_add_ps(f[c][r], upper[c][r]);
  }
  const __m256 q01 = Fold2(Fold4(f[0][0], f[0][1]), Fold4(f[1][0], f[1][1]));  // [0 0 1 1 | ...]
  const __m256 q23 = Fold2(Fold4(f[2][0], f[2][1]), Fold4(f[3][0], f[3][1]));  // [2 2 3 3 | ...]
  return _mm256_add_ps(_mm256_shuffle_ps(q01, q23, 0x88), _mm256_shuffle_ps(q01, q23, 0xDD));
}

// The first n of four.
inline void StoreDots(__m128 four, int32_t n, float* to) {
  if (n >= 4) {
    _mm_storeu_ps(to, four);
  } else {
    _mm_maskstore_ps(to, _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3)), four);
  }
}

// Prefetches `floats` numbers at the place of `from` in the next sample, which the hardware's
// prefetcher does not reach. Does nothing beyond the last sample.
inline void PrefetchOfNextSample(const float* from, int32_t vectors, int32_t dim, int32_t floats) {
  for (int32_t d = 0; d < floats; d += kFloatsPerLine) {
    __builtin_prefetch(from + vectors * dim + d);
  }
}

// The dots of each vector with those before it, two vectors with four at a time. `z` and
// `z_columns` have the same vectors [vectors, dim]. kDim > 0 fixes the dim at compile time.
// REQUIRES: dim % kLanes == 0
template <int kDim>
void DotsOfSample(const float* z, const float* z_columns, int32_t vectors, int32_t any_dim,
                  float* dots) {
  const int32_t dim = kDim > 0 ? kDim : any_dim;
  for (int32_t i = 1; i < vectors; i += 2) {
    const int32_t last = std::min(i + 1, vectors - 1);
    const float* const rows[2] = {z + i * dim, z + last * dim};
    PrefetchOfNextSample(z + (i - 1) * dim, vectors, dim, 2 * dim);
    for (int32_t j = 0; j < last; j += 4) {
      const float* columns[4];
      for (int32_t t = 0; t < 4; ++t) columns[t] = z_columns + std::min(j + t, i) * dim;
      const __m256 eight = EightDots<kDim>(rows, columns, dim);
      StoreDots(_mm256_castps256_ps128(eight), i - j, dots + FirstPair(i) + j);
      if (last > i) {
        StoreDots(_mm256_extractf128_ps(eight, 1), last - j, dots + FirstPair(last) + j);
      }
    }
  }
}

// 16 columns of the gradients of kRows vectors from i on; `z`, `direct` and `z_gradient` begin at
// the columns. Each column is one chain of FMAs:
//   z_gradient[i] = direct (where i is 0) + sum over j of gradient(i, j) z[j], j ascending
template <int kRows>
inline void GradientRows(const float* z, int32_t vectors, int32_t dim, const float* direct,
                         const float* dots, int32_t i, float* z_gradient) {
  __m256 sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  if (i == 0) {
    sum[0][0] = _mm256_loadu_ps(direct);
    sum[0][1] = _mm256_loadu_ps(direct + 8);
  }
  const auto add = [&](int r, int32_t j, const float* g) {
    const __m256 scale = _mm256_broadcast_ss(g);
    sum[r][0] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(z + j * dim), sum[r][0]);
    sum[r][1] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(z + j * dim + 8), sum[r][1]);
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
    _mm256_storeu_ps(z_gradient + (i + r) * dim, sum[r][0]);
    _mm256_storeu_ps(z_gradient + (i + r) * dim + 8, sum[r][1]);
  }
}

// The gradients of all vectors, columns by columns: 16 of all vectors stay in L1. kDim > 0 fixes
// the dim at compile time. REQUIRES: dim % kLanes == 0
template <int kDim>
void GradientOfSample(const float* z, int32_t vectors, int32_t any_dim,
                      const float* direct,  // [dim], of the first vector's copy
                      const float* dots,    // [vectors (vectors - 1) / 2]
                      float* z_gradient) {
  const int32_t dim = kDim > 0 ? kDim : any_dim;
  for (int32_t d = 0; d < dim; d += kLanes) {
    const auto add_rows = [&](auto rows, int32_t i) {
      for (int32_t r = i; r < i + rows; ++r) {
        PrefetchOfNextSample(z + r * dim + d, vectors, dim, kLanes);
        PrefetchOfNextSample(z_gradient + r * dim + d, vectors, dim, kLanes);
      }
      GradientRows<rows>(z + d, vectors, dim, direct + d, dots, i, z_gradient + d);
    };
    int32_t i = 0;
    for (; i + 6 <= vectors; i += 6) add_rows(std::integral_constant<int, 6>(), i);
    for (; i + 3 <= vectors; i += 3) add_rows(std::integral_constant<int, 3>(), i);
    for (; i < vectors; ++i) add_rows(std::integral_constant<int, 1>(), i);
  }
}

}  // namespace

void CpuInteractionForward(Matrix z, int32_t vectors, Matrix output, ThreadPool* pool) {
  const int32_t dim = z.cols / vectors;
  CHECK_EQ(z.cols, vectors * dim);
  CHECK_EQ(output.cols, dim + FirstPair(vectors));
  const int32_t padded = WholeLanes::PaddedDim(dim);
  const auto dots_of_sample = padded == 16 ? DotsOfSample<16> : DotsOfSample<0>;
  pool->ParallelFor((z.rows + kInteractionRows - 1) / kInteractionRows, [&](int64_t cell, int) {
    const int64_t end = std::min<int64_t>((cell + 1) * kInteractionRows, z.rows);
    // 0 times -0 is -0, which added to any number gives that number.
    WholeLanes rows(vectors, dim, 0.0f), columns(vectors, dim, -0.0f);
    for (int64_t b = cell * kInteractionRows; b < end; ++b) {
      std::memcpy(output.row(b), z.row(b), dim * sizeof(float));
      dots_of_sample(rows.Of(z.row(b)), columns.Of(z.row(b)), vectors, padded, output.row(b) + dim);
    }
  });
}

void CpuInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient, Matrix z_gradient,
                            ThreadPool* pool) {
  const int32_t dim = z.cols / vectors;
  CHECK_EQ(output_gradient.cols, dim + FirstPair(vectors));
  const int32_t padded = WholeLanes::PaddedDim(dim);
  const auto gradient_of_sample = padded == 16 ? GradientOfSample<16> : GradientOfSample<0>;
  pool->ParallelFor((z.rows + kInteractionRows - 1) / kInteractionRows, [&](int64_t cell, int) {
    const int64_t end = std::min<int64_t>((cell + 1) * kInteractionRows, z.rows);
    WholeLanes rows(vectors, dim, 0.0f), direct(1, dim, 0.0f);
    std::vector<float> padded_gradient(dim == padded ? 0 : int64_t{vectors} * padded);
    for (int64_t b = cell * kInteractionRows; b < end; ++b) {
      const float* gradient = output_gradient.row(b);
      float* to = dim == padded ? z_gradient.row(b) : padded_gradient.data();
      gradient_of_sample(rows.Of(z.row(b)), vectors, padded, direct.Of(gradient), gradient + dim,
                         to);
      for (int32_t i = 0; dim != padded && i < vectors; ++i) {
        std::memcpy(z_gradient.row(b) + int64_t{i} * dim, to + int64_t{i} * padded,
                    dim * sizeof(float));
      }
    }
  });
}

}  // namespace thermocline
