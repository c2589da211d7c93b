// The sparse half of one batch, as the model reads it: which rows were staged, which lookups they
// serve, and which gradients they receive. Made by worker/sparse's plan, consumed by worker/model.
//
// Everything points into device memory (on the CPU device: host memory) owned by the caller that
// made the batch, and stays valid until the model has worked through it.
#ifndef THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_
#define THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "kernels/matrix.h"

namespace thermocline {

// The number of a bag: its row in the interaction's input Z, seen as [batch * (dense_vectors +
// num_features), dim]. Row 0 of every sample is the bottom MLP's output, where there are dense
// columns (dense_vectors 1, else 0). Ascending bag numbers are the canonical order of lookups: by
// sample, then by feature; lookups of one bag keep their order.
//
// REQUIRES: batch * (1 + num_features) < 2^31
constexpr int32_t BagRow(int32_t sample, int32_t feature, int32_t num_features,
                         int32_t dense_vectors = 1) {
  return sample * (dense_vectors + num_features) + dense_vectors + feature;
}

// One table's rows in a batch. Unique keys are in any fixed order ("the staging order").
struct TableBatch {
  Matrix rows;  // [rows, dim] float32: weights, of the unique keys and maybe of others

  // The lookups of unique key u are segment_bags[segment_offsets[u] .. segment_offsets[u + 1]), in
  // canonical order: ascending BagRow, a bag that looks a key up twice stands there twice.
  DeviceSpan<const int32_t> segment_offsets;  // [num_unique + 1]
  DeviceSpan<const int32_t> segment_bags;     // [lookups of all features of this table] BagRow
  DeviceSpan<const float> segment_weights;    // [as many], of each of them; empty: 1
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

struct SparseBatch {
  int32_t batch_size = 0;
  std::vector<TableBatch> tables;
  std::vector<FeatureBatch> features;  // In the order of the model's features.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_SPARSE_BATCH_H_
