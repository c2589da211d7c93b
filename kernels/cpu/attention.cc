#include "kernels/cpu/attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/row_loops.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

constexpr int64_t kVector = 8;    // Floats of a register.
constexpr int64_t kTileRows = 4;  // Rows that a tile computes.
constexpr int64_t kQueries = 16;  // Queries whose shares are computed at once.

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Copies n floats of a row. (A call of memcpy takes longer than so few.)
void CopyRow(const float* from, int32_t n, float* to) {
  int32_t c = 0;
  for (; c + kVector <= n; c += kVector) _mm256_storeu_ps(to + c, _mm256_loadu_ps(from + c));
  for (; c < n; ++c) to[c] = from[c];
}

// out[i][j] = the chain of a[i][c] * b[c][j] over c in [0, n), for kTileRows rows and kVectors
// vectors of j.
template <int kVectors>
void DotTile(const float* a, int64_t lda, const float* b, int64_t ldb, int32_t n, float* out,
             int64_t ldo) {
  __m256 sums[kTileRows][kVectors];
  for (auto& of_row : sums) {
    for (__m256& sum : of_row) sum = _mm256_setzero_ps();
  }
  for (int32_t c = 0; c < n; ++c) {
    __m256 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = _mm256_loadu_ps(b + c * ldb + v * kVector);
    for (int i = 0; i < kTileRows; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i * lda + c);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_fmadd_ps(x, row[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kTileRows; ++i) {
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(out + i * ldo + v * kVector, sums[i][v]);
  }
}

// Weights that a tile of rows is multiplied with: that of output i and row j is
// first[i * output_stride + j * row_stride].
struct Weights {
  const float* first = nullptr;
  int64_t output_stride = 0, row_stride = 0;

  Weights From(int64_t output) const {
    return {first + output * output_stride, output_stride, row_stride};
  }
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

// The same for so many outputs, a multiple of kTileRows, and `ld` columns, a multiple of kVector.
void WeightedRows(const Weights& weights, int64_t outputs, const float* rows, int64_t n, int64_t ld,
                  bool adds, float* out) {
  int64_t c = 0;
  for (; c + 2 * kVector <= ld; c += 2 * kVector) {
    for (int64_t i = 0; i < outputs; i += kTileRows) {
      WeightedTile<kTileRows, 2>(weights.From(i), rows + c, n, ld, adds, out + i * ld + c);
    }
  }
  if (c == ld) return;
  // One vector is left. More outputs at once keep both of the processor's multipliers busy.
  int64_t i = 0;
  for (; i + 2 * kTileRows <= outputs; i += 2 * kTileRows) {
    WeightedTile<2 * kTileRows, 1>(weights.From(i), rows + c, n, ld, adds, out + i * ld + c);
  }
  if (i < outputs) {
    WeightedTile<kTileRows, 1>(weights.From(i), rows + c, n, ld, adds, out + i * ld + c);
  }
}

// ExpOfNonPositive of each.
__m256 ExpOfNonPositive8(__m256 t) {
  using C = ExpConstants;
  const auto all = [](float value) { return _mm256_set1_ps(value); };
  const auto multiply_add = [](__m256 a, __m256 b, __m256 c) {
    return _mm256_add_ps(_mm256_mul_ps(a, b), c);
  };
  const __m256 sign = all(-0.0f);
  // A NaN stays: it is the second operand.
  t = _mm256_or_ps(_mm256_min_ps(all(-kLeastExponent), _mm256_andnot_ps(sign, t)), sign);
  const __m256 rounded = multiply_add(t, all(C::kLog2E), all(C::kRound));
  const __m256 n = _mm256_sub_ps(rounded, all(C::kRound));
  const __m256 high = _mm256_sub_ps(t, _mm256_mul_ps(n, all(C::kLn2High)));
  const __m256 r = _mm256_sub_ps(high, _mm256_mul_ps(n, all(C::kLn2Low)));
  __m256 p = all(C::k7);
  for (float term : {C::k6, C::k5, C::k4, C::k3, C::k2}) p = multiply_add(p, r, all(term));
  const __m256 rest = multiply_add(p, _mm256_mul_ps(r, r), r);
  const __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(rounded), _mm256_set1_epi32(127));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return multiply_add(power, rest, power);
}

// Vectors of a row of n floats. The last may be a part; then `mask` has its floats.
struct RowVectors {
  int64_t whole;
  bool has_part;
  __m256 mask;

  explicit RowVectors(int64_t n) : whole(n / kVector * kVector), has_part(n > whole) {
    float ones[kVector];
    for (int64_t i = 0; i < kVector; ++i) ones[i] = FloatOfBits(whole + i < n ? ~0u : 0);
    mask = _mm256_loadu_ps(ones);
  }
};

// Multiplies scores with `scale` and returns the greatest.
float ScaleAndFindMost(float* scores, const RowVectors& vectors, float scale) {
  const __m256 scales = _mm256_set1_ps(scale);
  const auto scaled = [&](int64_t s) {
    const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + s), scales);
    _mm256_storeu_ps(scores + s, x);
    return x;
  };
  const __m256 least = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 most = least;
  for (int64_t s = 0; s < vectors.whole; s += kVector) most = _mm256_max_ps(scaled(s), most);
  if (vectors.has_part) {
    most = _mm256_max_ps(_mm256_blendv_ps(least, scaled(vectors.whole), vectors.mask), most);
  }
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Replaces scores by exp(score - most) and returns their sum in 16 lanes.
float ExpAndSum(float* scores, const RowVectors& vectors, float most) {
  const __m256 mosts = _mm256_set1_ps(most);
  const auto exp = [&](int64_t s) {
    const __m256 e = ExpOfNonPositive8(_mm256_sub_ps(_mm256_loadu_ps(scores + s), mosts));
    _mm256_storeu_ps(scores + s, e);
    return e;
  };
  __m256 low = _mm256_setzero_ps(), high = low;  // lanes 0 .. 7 and 8 .. 15
  int64_t s = 0;
  for (; s + 2 * kVector <= vectors.whole; s += 2 * kVector) {
    low = _mm256_add_ps(low, exp(s));
    high = _mm256_add_ps(high, exp(s + kVector));
  }
  const bool ends_high = s < vectors.whole;
  if (ends_high) low = _mm256_add_ps(low, exp(s));
  if (vectors.has_part) {
    __m256& sum = ends_high ? high : low;
    sum = _mm256_add_ps(sum, _mm256_and_ps(exp(vectors.whole), vectors.mask));
  }
  float lanes[kLanes];
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + kVector, high);
  return TreeSum(lanes);
}

// The dot product of n floats, one after the other.
float ChainDot(const float* a, const float* b, int32_t n) {
  float sum = 0;
  for (int32_t c = 0; c < n; ++c) sum = std::fma(a[c], b[c], sum);
  return sum;
}

// What the gradients of one query's scores are computed with.
struct QueryStatistics {
  float most, inverse, scale, dot;
};

// Replaces n scores by shares, and the gradients of the shares by those of the scores. REQUIRES: n
// is a multiple of kVector
void ToScoreGradients(const QueryStatistics& query, int64_t n, float* scores, float* gradients) {
  const __m256 most = _mm256_set1_ps(query.most), inverse = _mm256_set1_ps(query.inverse);
  const __m256 scale = _mm256_set1_ps(query.scale), dot = _mm256_set1_ps(query.dot);
  for (int64_t s = 0; s < n; s += kVector) {
    const __m256 score = _mm256_mul_ps(_mm256_loadu_ps(scores + s), scale);
    const __m256 share = _mm256_mul_ps(ExpOfNonPositive8(_mm256_sub_ps(score, most)), inverse);
    // SoftmaxGradient
    const __m256 gradient =
        _mm256_mul_ps(share, _mm256_sub_ps(_mm256_loadu_ps(gradients + s), dot));
    _mm256_storeu_ps(scores + s, share);
    _mm256_storeu_ps(gradients + s, _mm256_mul_ps(gradient, scale));
  }
}

}  // namespace

void AttentionHead::Begin(int64_t steps, int32_t width) {
  steps_ = steps;
  width_ = width;
  padded_steps_ = RoundUp(steps, kVector);
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
    if (n > 0) CopyRow(from.row(t), n, to);
    for (int32_t c = n; c < padded_width_; ++c) to[c] = 0;
  }
}

void AttentionHead::Unpack(const std::vector<float>& rows, RowsOfHead to) const {
  for (int64_t t = 0; t < steps_; ++t) {
    CopyRow(rows.data() + t * padded_width_, width_, to.row(t));
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

void AttentionHead::Dots(const std::vector<float>& rows, int64_t first, int64_t queries,
                         const std::vector<float>& transposed, std::vector<float>* scores) const {
  for (int64_t i = 0; i < queries; i += kTileRows) {
    const float* const row = rows.data() + (first + i) * padded_width_;
    float* const to = scores->data() + i * padded_steps_;
    int64_t s = 0;
    for (; s + 2 * kVector <= padded_steps_; s += 2 * kVector) {
      DotTile<2>(row, padded_width_, transposed.data() + s, padded_steps_, width_, to + s,
                 padded_steps_);
    }
    if (s == padded_steps_) continue;
    DotTile<1>(row, padded_width_, transposed.data() + s, padded_steps_, width_, to + s,
               padded_steps_);
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
  const RowVectors vectors(steps);
  for (int64_t first = 0; first < steps; first += kQueries) {
    const int64_t queries = std::min(kQueries, steps - first);
    Dots(q_, first, queries, k_transposed_, &shares_);
    float inverses[kQueries] = {};
    for (int64_t i = 0; i < queries; ++i) {
      float* const e = shares_.data() + i * padded_steps_;
      const float most = ScaleAndFindMost(e, vectors, scale);
      inverses[i] = 1 / ExpAndSum(e, vectors, most);
      float* const to = statistics.row(first + i);
      to[0] = most;
      to[statistics_stride] = inverses[i];
    }
    float* const sums = y_.data() + first * padded_width_;
    WeightedRows({shares_.data(), padded_steps_, 1}, RoundUp(queries, kTileRows), v_.data(), steps,
                 padded_width_,
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
    const int64_t queries = std::min(kQueries, steps - first);
    Dots(q_, first, queries, k_transposed_, &shares_);
    Dots(y_gradient_, first, queries, v_transposed_, &score_gradients_);
    // Apart from the loop below: the processor works at several of these chains at once.
    float dots[kQueries];
    for (int64_t i = 0; i < queries; ++i) {
      dots[i] = ChainDot(y_gradient.row(first + i), y.row(first + i), width);
    }
    for (int64_t i = 0; i < queries; ++i) {
      const float* const of_query = statistics.row(first + i);
      ToScoreGradients({of_query[0], of_query[statistics_stride], scale, dots[i]}, padded_steps_,
                       shares_.data() + i * padded_steps_,
                       score_gradients_.data() + i * padded_steps_);
    }
    const int64_t ld = padded_width_;
    const bool adds = first > 0;
    WeightedRows({score_gradients_.data(), padded_steps_, 1}, RoundUp(queries, kTileRows),
                 k_.data(), steps, ld,
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
