#include "worker/model/pooled_vectors.h"

#include <algorithm>

#include "common/base/check.h"

namespace thermocline {
PooledVectors::PooledVectors(Device* device, const ModelGraph& graph,
                             const Activations& activations, size_t arena)
    : device_(device), activations_(activations), arena_(arena) {
  for (const int g : activations.arenas()[arena].groups) {
    const PooledFeatures& group = graph.pooled[g];
    if (group.vectors != kNoBuffer) parts_.push_back({&group, group.vectors, group.dim, 0, {}});
    if (group.first_order != kNoBuffer) {
      parts_.push_back({&group, group.first_order, 1, group.dim, {}});
    }
  }
}

void PooledVectors::Forward(const SparseBatch& batch) {
  batch_ = &batch;
  tables_.clear();
  const int32_t row_weights = parts_.back().first_column + parts_.back().dim;
  for (Part& part : parts_) {
    part.pool_inputs.clear();
    for (const int32_t f : part.group->features) {
      const FeatureBatch& feature = batch.features[f];
      const Matrix& rows = batch.tables[feature.table].rows;
      CHECK_EQ(rows.cols, row_weights);
      part.pool_inputs.push_back({feature.pooling, ColumnsOf(rows, part.first_column, part.dim),
                                  feature.row_indices, feature.offsets, feature.weights});
      tables_.push_back(feature.table);
    }
    // Rows beyond the last step stay as they are.
    const int sequence = part.group->sequence;
    Matrix pooled = activations_.ValueOf(part.buffer);
    if (sequence != kSamples) pooled.rows = batch.sequences[sequence].steps;
    device_->PoolForward(part.pool_inputs, part.dim, part.group->leading, pooled);
  }
  std::sort(tables_.begin(), tables_.end());
  tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
}

void PooledVectors::Backward(absl::Span<const Matrix> row_gradients) {
  CHECK_EQ(row_gradients.size(), batch_->tables.size());
  for (const Part& part : parts_) {
    // A step's vector is one row: its gradient is the row's.
    if (part.group->sequence != kSamples) continue;
    const Matrix gradients = activations_.GradientOf(part.buffer);
    device_->PoolBackward(part.pool_inputs, part.dim, part.group->leading, gradients);
    if (part.buffer != part.group->first_order) continue;
    const int32_t vectors = gradients.cols;
    SumRows(FloatMatrix(gradients.floats(), gradients.rows * vectors, 1), part.first_column,
            row_gradients);
  }
  if (parts_[0].buffer != parts_[0].group->vectors) return;
  SumRows(activations_.VectorGradients(arena_), 0, row_gradients);
}

void PooledVectors::SumRows(Matrix gradients, int32_t first_column,
                            absl::Span<const Matrix> row_gradients) {
  segment_groups_.clear();
  for (const int32_t t : tables_) {
    const TableBatch& table = batch_->tables[t];
    segment_groups_.push_back({table.segment_bags, table.segment_offsets,
                               ColumnsOf(row_gradients[t], first_column, gradients.cols),
                               table.segment_weights});
  }
  device_->SegmentSum(gradients, segment_groups_);
}

}  // namespace thermocline
