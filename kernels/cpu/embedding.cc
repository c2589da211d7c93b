#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/math/table_spec.h"
#include "kernels/cpu/cpu_operations.h"

namespace thermocline {
namespace {

// Samples of one cell of the pooling grid: their part of Z stays in L2.
constexpr int64_t kPoolRows = 64;
// Segments of one cell of the segment sum's grid.
constexpr int64_t kSegmentsPerCell = 512;
// Cache lines fetched ahead of their use.
constexpr int64_t kPrefetchLines = 16;

// kDim > 0 fixes the dim at compile time.
template <int kDim>
void CopyRow(const float* from, float* to, int32_t dim) {
  std::memcpy(to, from, sizeof(float) * (kDim > 0 ? kDim : dim));
}

template <int kDim>
void AddRow(const float* __restrict from, float* __restrict to, int32_t dim) {
  const int32_t n = kDim > 0 ? kDim : dim;
  for (int32_t i = 0; i < n; ++i) to[i] += from[i];
}

template <int kDim>
void CopyScaledRow(const float* __restrict from, float scale, float* __restrict to, int32_t dim) {
  const int32_t n = kDim > 0 ? kDim : dim;
  for (int32_t i = 0; i < n; ++i) to[i] = scale * from[i];
}

template <int kDim>
void AddScaledRow(const float* __restrict from, float scale, float* __restrict to, int32_t dim) {
  const int32_t n = kDim > 0 ? kDim : dim;
  for (int32_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

template <int kDim>
void PrefetchRow(const float* row, int32_t dim) {
  const int32_t n = kDim > 0 ? kDim : dim;
  for (int32_t i = 0; i < n; i += kFloatsPerLine) __builtin_prefetch(row + i);
}

// How many rows are fetched ahead of their use.
template <int kDim>
int64_t PrefetchDistance(int32_t dim) {
  return std::max<int64_t>(kPrefetchLines * kFloatsPerLine / (kDim > 0 ? kDim : dim), 1);
}

// Rows to be read in the order of `indices`, up to `end`. They are scattered over a buffer larger
// than L2: a read of one row prefetches another.
template <int kDim>
struct RowsInOrder {
  const Matrix rows;
  const int32_t* const indices;
  const int64_t end;
  const int32_t dim;
  const int64_t ahead = PrefetchDistance<kDim>(dim);

  const float* Read(int64_t j) const {
    PrefetchRow<kDim>(rows.row(indices[std::min(j + ahead, end - 1)]), dim);
    return rows.row(indices[j]);
  }
};

// The same, each times its weight where there are weights.
template <int kDim, bool kWeighted>
struct Terms {
  const RowsInOrder<kDim> rows;
  const float* const weights;

  void Copy(int64_t j, float* to) const {
    if constexpr (kWeighted) {
      CopyScaledRow<kDim>(rows.Read(j), weights[j], to, rows.dim);
    } else {
      CopyRow<kDim>(rows.Read(j), to, rows.dim);
    }
  }
  void Add(int64_t j, float* to) const {
    if constexpr (kWeighted) {
      AddScaledRow<kDim>(rows.Read(j), weights[j], to, rows.dim);
    } else {
      AddRow<kDim>(rows.Read(j), to, rows.dim);
    }
  }
};

void ScaleRow(float scale, float* row, int32_t dim) {
  for (int32_t i = 0; i < dim; ++i) row[i] *= scale;
}

// Samples [begin, end), of which the first is pooled into `to`.
template <int kDim>
void PoolOneLookup(const PoolInput& feature, int64_t begin, int64_t end, int32_t dim, float* to,
                   int64_t ld) {
  const RowsInOrder<kDim> rows{feature.rows, feature.row_indices.data, end, dim};
  for (int64_t b = begin; b < end; ++b, to += ld) {
    if (b + rows.ahead < end) PrefetchRow<kDim>(to + rows.ahead * ld, dim);
    CopyRow<kDim>(rows.Read(b), to, dim);
  }
}

template <int kDim, bool kWeighted>
void PoolBags(const PoolInput& feature, int64_t begin, int64_t end, int32_t dim, float* to,
              int64_t ld) {
  const RowsInOrder<kDim> rows{feature.rows, feature.row_indices.data, feature.offsets[end], dim};
  const Terms<kDim, kWeighted> terms{rows, feature.weights.data};
  for (int64_t b = begin; b < end; ++b, to += ld) {
    const int32_t first = feature.offsets[b], last = feature.offsets[b + 1];
    if (b + rows.ahead < end) PrefetchRow<kDim>(to + rows.ahead * ld, dim);
    if (first == last) {
      std::fill_n(to, dim, 0.0f);
      continue;
    }
    terms.Copy(first, to);
    for (int32_t j = first + 1; j < last; ++j) terms.Add(j, to);
    if (feature.mode == PoolingMode::kMean && last - first > 1) {
      ScaleRow(1.0f / static_cast<float>(last - first), to, dim);
    }
  }
}

template <int kDim>
void PoolRows(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector, Matrix z,
              int64_t begin, int64_t end) {
  for (size_t f = 0; f < features.size(); ++f) {
    float* to = z.row(begin) + (first_vector + static_cast<int64_t>(f)) * dim;
    if (features[f].offsets.empty()) {
      PoolOneLookup<kDim>(features[f], begin, end, dim, to, z.ld);
    } else if (features[f].weights.empty()) {
      PoolBags<kDim, false>(features[f], begin, end, dim, to, z.ld);
    } else {
      PoolBags<kDim, true>(features[f], begin, end, dim, to, z.ld);
    }
  }
}

template <int kDim, bool kWeighted>
void SumSegmentsOf(Matrix gradients, const SegmentGroup& group, int64_t begin, int64_t end) {
  const int32_t dim = gradients.cols;
  const RowsInOrder<kDim> rows{gradients, group.lookups.data, group.lookups.size, dim};
  const Terms<kDim, kWeighted> terms{rows, group.weights.data};
  float partial[kDim > 0 ? kDim : kMaxDim];
  for (int64_t u = begin; u < end; ++u) {
    const int32_t first = group.offsets[u], last = group.offsets[u + 1];
    float* sum = group.sums.row(u);
    if (last - first == 1) {
      terms.Copy(first, sum);
      continue;
    }
    if (first == last) std::fill_n(sum, dim, 0.0f);
    for (int32_t chunk = first; chunk < last; chunk += kSegmentChunk) {
      const int32_t chunk_end = std::min(chunk + kSegmentChunk, last);
      terms.Copy(chunk, partial);
      for (int32_t j = chunk + 1; j < chunk_end; ++j) terms.Add(j, partial);
      if (chunk == first) {
        CopyRow<kDim>(partial, sum, dim);
      } else {
        AddRow<kDim>(partial, sum, dim);
      }
    }
  }
}

template <int kDim>
void SumSegments(Matrix gradients, const SegmentGroup& group, int64_t begin, int64_t end) {
  if (group.weights.empty()) {
    SumSegmentsOf<kDim, false>(gradients, group, begin, end);
  } else {
    SumSegmentsOf<kDim, true>(gradients, group, begin, end);
  }
}

}  // namespace

void CpuPoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z, ThreadPool* pool) {
  for (const PoolInput& feature : features) {
    CHECK(feature.offsets.empty() ? feature.row_indices.size == z.rows
                                  : feature.offsets.size == z.rows + int64_t{1});
    CHECK(HasValidWeights(feature));
  }
  const auto pool_rows = dim == 16 ? PoolRows<16> : PoolRows<0>;
  pool->ParallelFor((z.rows + kPoolRows - 1) / kPoolRows, [&](int64_t cell, int) {
    const int64_t begin = cell * kPoolRows;
    pool_rows(features, dim, first_vector, z, begin, std::min<int64_t>(begin + kPoolRows, z.rows));
  });
}

void CpuPoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                     Matrix z_gradient, ThreadPool* pool) {
  const auto divides = [](const PoolInput& feature) {
    return feature.mode == PoolingMode::kMean && !feature.offsets.empty();
  };
  if (std::none_of(features.begin(), features.end(), divides)) return;
  pool->ParallelFor((z_gradient.rows + kPoolRows - 1) / kPoolRows, [&](int64_t cell, int) {
    const int64_t end = std::min<int64_t>((cell + 1) * kPoolRows, z_gradient.rows);
    for (size_t f = 0; f < features.size(); ++f) {
      if (!divides(features[f])) continue;
      for (int64_t b = cell * kPoolRows; b < end; ++b) {
        const int32_t length = features[f].offsets[b + 1] - features[f].offsets[b];
        if (length < 2) continue;
        ScaleRow(1.0f / static_cast<float>(length),
                 z_gradient.row(b) + (first_vector + static_cast<int64_t>(f)) * dim, dim);
      }
    }
  });
}

void CpuSegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups, ThreadPool* pool) {
  const auto cells_of = [](const SegmentGroup& group) {
    return (group.sums.rows + kSegmentsPerCell - 1) / kSegmentsPerCell;
  };
  int64_t num_cells = 0;
  for (const SegmentGroup& group : groups) {
    CHECK_EQ(group.offsets.size, group.sums.rows + int64_t{1});
    CHECK(group.weights.empty() || group.weights.size == group.lookups.size);
    num_cells += cells_of(group);
  }
  const auto sum_segments = gradients.cols == 16 ? SumSegments<16> : SumSegments<0>;
  pool->ParallelFor(num_cells, [&](int64_t cell, int) {
    const SegmentGroup* group = groups.data();
    for (; cell >= cells_of(*group); ++group) cell -= cells_of(*group);
    const int64_t begin = cell * kSegmentsPerCell;
    sum_segments(gradients, *group, begin,
                 std::min<int64_t>(begin + kSegmentsPerCell, group->sums.rows));
  });
}

}  // namespace thermocline
