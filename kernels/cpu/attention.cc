#include "kernels/cpu/attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/row_loops.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

constexpr int64_t kVector = 8;    // Floats of a register.
constexpr int64_t kQueries = 16;  // Queries whose shares are computed at once.

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// out[i][j] = the chain of a[i][c] * b[c][j] over c in [0, n), for kRows rows and 2 vectors of j.
template <int kRows>
void DotTile(const float* a, int64_t lda, const float* b, int64_t ldb, int32_t n, float* out,
             int64_t ldo) {
  __m256 sums[kRows][2];
  for (auto& of_row : sums) of_row[0] = of_row[1] = _mm256_setzero_ps();
  for (int32_t c = 0; c < n; ++c) {
    const __m256 b0 = _mm256_loadu_ps(b + c * ldb);
    const __m256 b1 = _mm256_loadu_ps(b + c * ldb + kVector);
    for (int i = 0; i < kRows; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i * lda + c);
      sums[i][0] = _mm256_fmadd_ps(x, b0, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(x, b1, sums[i][1]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    _mm256_storeu_ps(out + i * ldo, sums[i][0]);
    _mm256_storeu_ps(out + i * ldo + kVector, sums[i][1]);
  }
}

// Weights that a tile of rows is multiplied with: that of output i and row j is
// first[i * output_stride + j * row_stride].
struct Weights {
  const float* first = nullptr;
  int64_t output_stride = 0, row_stride = 0;
};

// out[i][c] continues its chain with weight(i, j) * rows[j][c] over j in [0, n), for kOutputs
// outputs and kVectors vectors of c. adds: to what is in `out`, else to 0
template <int kOutputs, int kVectors>
void WeightedTile(const Weights& weights, const float* rows, int64_t n, int64_t ld, bool adds,
                  float* out) {
  __m256 sums[kOutputs][kVectors];
  for (int i = 0; i < kOutputs; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = adds ? _mm256_loadu_ps(out + i * ld + v * kVector) : _mm256_setzero_ps();
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    __m256 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = _mm256_loadu_ps(rows + j * ld + v * kVector);
    for (int i = 0; i < kOutputs; ++i) {
      const __m256 weight =
          _mm256_broadcast_ss(weights.first + i * weights.output_stride + j * weights.row_stride);
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = _mm256_fmadd_ps(weight, row[v], sums[i][v]);
      }
    }
  }
  for (int i = 0; i < kOutputs; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_ps(out + i * ld + v * kVector, sums[i][v]);
    }
  }
}

// The same for so many outputs, a multiple of 8, and `ld` columns, a multiple of kVector.
void WeightedRows(const Weights& weights, int64_t outputs, const float* rows, int64_t n, int64_t ld,
                  bool adds, float* out) {
  for (int64_t i = 0; i < outputs; i += 4) {
    const Weights of_tile = {weights.first + i * weights.output_stride, weights.output_stride,
                             weights.row_stride};
    int64_t c = 0;
    for (; c + 2 * kVector <= ld; c += 2 * kVector) {
      WeightedTile<4, 2>(of_tile, rows + c, n, ld, adds, out + i * ld + c);
    }
    // One vector is left: eight outputs at once keep both of the processor's multipliers busy.
    if (c < ld && i % 8 == 0) {
      WeightedTile<8, 1>(of_tile, rows + c, n, ld, adds, out + i * ld + c);
    }
  }
}

}  // namespace

void AttentionHead::Begin(int64_t steps, int32_t width) {
  steps_ = steps;
  width_ = width;
  padded_steps_ = RoundUp(steps, kQueries);
  padded_width_ = static_cast<int32_t>(RoundUp(width, kVector));
  for (std::vector<float>* scores : {&shares_, &score_gradients_}) {
    scores->resize(std::max<size_t>(scores->size(), kQueries * padded_steps_));
  }
}

void AttentionHead::Pack(RowsOfHead from, std::vector<float>* rows) const {
  rows->resize(std::max<size_t>(rows->size(), padded_steps_ * padded_width_));
  float* to = rows->data();
  for (int64_t t = 0; t < padded_steps_; ++t, to += padded_width_) {
    const int32_t n = t < steps_ ? width_ : 0;
    for (int32_t c = 0; c < n; ++c) to[c] = from.row(t)[c];
    for (int32_t c = n; c < padded_width_; ++c) to[c] = 0;
  }
}

void AttentionHead::Unpack(const std::vector<float>& rows, RowsOfHead to) const {
  for (int64_t t = 0; t < steps_; ++t) {
    std::copy_n(rows.data() + t * padded_width_, width_, to.row(t));
  }
}

void AttentionHead::Transpose(RowsOfHead from, std::vector<float>* columns) const {
  columns->resize(std::max<size_t>(columns->size(), padded_steps_ * width_));
  for (int32_t c = 0; c < width_; ++c) {
    float* const to = columns->data() + c * padded_steps_;
    for (int64_t t = 0; t < steps_; ++t) to[t] = from.row(t)[c];
    for (int64_t t = steps_; t < padded_steps_; ++t) to[t] = 0;
  }
}

void AttentionHead::Dots(const std::vector<float>& rows, int64_t first,
                         const std::vector<float>& transposed, std::vector<float>* scores) const {
  for (int64_t s = 0; s < padded_steps_; s += 2 * kVector) {
    for (int64_t i = 0; i < kQueries; i += 4) {
      DotTile<4>(rows.data() + (first + i) * padded_width_, padded_width_, transposed.data() + s,
                 padded_steps_, width_, scores->data() + i * padded_steps_ + s, padded_steps_);
    }
  }
}

void AttentionHead::Forward(int64_t steps, int32_t width, RowsOfHead q, RowsOfHead k, RowsOfHead v,
                            RowsOfHead y, RowsOfHead statistics, int64_t statistics_stride) {
  Begin(steps, width);
  Pack(q, &q_);
  Pack(v, &v_);
  Transpose(k, &k_transposed_);
  y_.resize(std::max<size_t>(y_.size(), padded_steps_ * padded_width_));
  const float scale = AttentionScale(width);
  for (int64_t first = 0; first < steps; first += kQueries) {
    Dots(q_, first, k_transposed_, &shares_);
    float inverses[kQueries] = {};
    const int64_t queries = std::min(kQueries, steps - first);
    for (int64_t i = 0; i < queries; ++i) {
      float* const e = shares_.data() + i * padded_steps_;
      for (int64_t s = 0; s < padded_steps_; ++s) e[s] *= scale;
      float most = e[0];
      for (int64_t s = 1; s < steps; ++s) most = GreaterOf(most, e[s]);
      for (int64_t s = 0; s < padded_steps_; ++s) e[s] = ExpOfNonPositive(e[s] - most);
      inverses[i] = 1 / SumOfLanes(steps, [e](int64_t s) { return e[s]; });
      float* const to = statistics.row(first + i);
      to[0] = most;
      to[statistics_stride] = inverses[i];
    }
    float* const sums = y_.data() + first * padded_width_;
    WeightedRows({shares_.data(), padded_steps_, 1}, kQueries, v_.data(), steps, padded_width_,
                 /*adds=*/false, sums);
    for (int64_t i = 0; i < queries; ++i) {
      for (int32_t c = 0; c < padded_width_; ++c) sums[i * padded_width_ + c] *= inverses[i];
    }
  }
  Unpack(y_, y);
}

void AttentionHead::Backward(int64_t steps, int32_t width, RowsOfHead q, RowsOfHead k, RowsOfHead v,
                             RowsOfHead y, RowsOfHead statistics, int64_t statistics_stride,
                             RowsOfHead y_gradient, RowsOfHead q_gradient, RowsOfHead k_gradient,
                             RowsOfHead v_gradient) {
  Begin(steps, width);
  Pack(q, &q_);
  Pack(k, &k_);
  Pack(y_gradient, &y_gradient_);
  Transpose(k, &k_transposed_);
  Transpose(v, &v_transposed_);
  for (std::vector<float>* gradient : {&q_gradient_, &k_gradient_, &v_gradient_}) {
    gradient->resize(std::max<size_t>(gradient->size(), padded_steps_ * padded_width_));
  }
  const float scale = AttentionScale(width);
  for (int64_t first = 0; first < steps; first += kQueries) {
    Dots(q_, first, k_transposed_, &shares_);
    Dots(y_gradient_, first, v_transposed_, &score_gradients_);
    const int64_t queries = std::min(kQueries, steps - first);
    for (int64_t i = 0; i < queries; ++i) {
      const float most = statistics.row(first + i)[0];
      const float inverse = statistics.row(first + i)[statistics_stride];
      float dot = 0;
      for (int32_t c = 0; c < width; ++c) {
        dot = std::fma(y_gradient.row(first + i)[c], y.row(first + i)[c], dot);
      }
      float* const share = shares_.data() + i * padded_steps_;
      float* const gradient = score_gradients_.data() + i * padded_steps_;
      for (int64_t s = 0; s < padded_steps_; ++s) {
        share[s] = ExpOfNonPositive(share[s] * scale - most) * inverse;
        gradient[s] = SoftmaxGradient(share[s], gradient[s], dot) * scale;
      }
    }
    const int64_t ld = padded_width_;
    const bool adds = first > 0;
    WeightedRows({score_gradients_.data(), padded_steps_, 1}, kQueries, k_.data(), steps, ld,
                 /*adds=*/false, q_gradient_.data() + first * ld);
    WeightedRows({score_gradients_.data(), 1, padded_steps_}, padded_steps_, q_.data() + first * ld,
                 queries, ld, adds, k_gradient_.data());
    WeightedRows({shares_.data(), 1, padded_steps_}, padded_steps_, y_gradient_.data() + first * ld,
                 queries, ld, adds, v_gradient_.data());
  }
  Unpack(q_gradient_, q_gradient);
  Unpack(k_gradient_, k_gradient);
  Unpack(v_gradient_, v_gradient);
}

}  // namespace thermocline
