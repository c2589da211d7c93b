// The embedded features of one batch, as a model reads them: which rows were staged, which lookups
// they serve, and which gradients they receive. ModelStep (worker/train) makes it of a step's plan.
//
// Everything points into device memory (on the CPU device: host memory) that the maker of the batch
// owns, and stays valid until the model has worked through it.
#ifndef THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_
#define THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_

#include <cstdint>
#include <vector>

#include "common/model/step_rows.h"
#include "kernels/device.h"
#include "kernels/matrix.h"

namespace thermocline {

// Where a model has the vectors of one feature: the pooled vector of sample b is row
// first + b * stride of a buffer, seen as [rows, dim], and so is its gradient. Features that read
// one table have their vectors in one buffer.
//
// A feature that is read step by step has a vector for each of its lookups: that of lookup i of the
// batch is row first + i * stride, behind the vectors of another sequence's features where both lie
// in one buffer (FirstRowOf).
//
// REQUIRES: rows < 2^31
struct VectorPlace {
  int32_t first = 0;
  int32_t stride = 1;
  bool is_by_step = false;
  int32_t behind = -1;  // The feature, read step by step, behind whose vectors they lie; -1: none.

  int32_t RowOf(int32_t bag) const { return first + bag * stride; }
};

// The row of the feature's first vector in a batch whose feature g has lookups(g) lookups.
template <typename Lookups>
int64_t FirstRowOf(const std::vector<VectorPlace>& places, int32_t feature, Lookups lookups) {
  int64_t row = places[feature].first;
  for (int32_t f = places[feature].behind; f >= 0; f = places[f].behind) {
    row += PaddedSteps(lookups(f)) * places[f].stride;
  }
  return row;
}

// The places of features whose vectors stand beside each other in each sample's part of the buffer,
// after `leading` vectors of another origin.
inline std::vector<VectorPlace> PlacesSideBySide(int32_t num_features, int32_t leading) {
  std::vector<VectorPlace> places;
  for (int32_t f = 0; f < num_features; ++f) {
    places.push_back({leading + f, leading + num_features});
  }
  return places;
}

// One table's rows in a batch. Unique keys are in any fixed order ("the staging order").
struct TableBatch {
  Matrix rows;  // [rows, dim] float32: weights, of the unique keys and maybe of others

  // The lookups of unique key u are segment_bags[segment_offsets[u] .. segment_offsets[u + 1]), in
  // canonical order: by sample, then by feature, then by position in the feature's list. A vector
  // that looks a key up twice stands there twice.
  DeviceSpan<const int32_t> segment_offsets;  // [num_unique + 1]
  DeviceSpan<const int32_t> segment_bags;     // [lookups of the table] row by VectorPlace
  DeviceSpan<const float> segment_weights;    // [lookups of the table]; empty: each is 1
};

// One feature's lookups in a batch.
struct FeatureBatch {
  int32_t table = 0;  // Index into SparseBatch::tables; several features may share one.
  PoolingMode pooling = PoolingMode::kSum;
  // Lookups of sample b are row_indices[offsets[b] .. offsets[b + 1]). An empty bag pools to zeros.
  // Without offsets every sample has exactly one lookup: row_indices is [batch] (the fast path).
  DeviceSpan<const int32_t> offsets;      // [batch + 1] or empty
  DeviceSpan<const int32_t> row_indices;  // [lookups] row of the key in its table's `rows`
  DeviceSpan<const float> weights;        // [lookups] for kSum with offsets; empty: 1
};

// The steps of one sequence in a batch, those of a sample next to each other.
struct SequenceBatch {
  int32_t steps = 0;
  DeviceSpan<const int32_t> offsets;  // [batch + 1] sample b has steps offsets[b] .. offsets[b + 1]
  DeviceSpan<const int32_t> samples;  // [steps] the sample of each
};

struct SparseBatch {
  int32_t batch_size = 0;
  std::vector<TableBatch> tables;
  // In the order of ModelInputs::features. One that is read step by step has a lookup for each step
  // of its sequence, and no offsets.
  std::vector<FeatureBatch> features;
  std::vector<SequenceBatch> sequences;  // In the order of ModelInputs::sequences.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_
